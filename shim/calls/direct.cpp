#include "shim/calls/direct.h"

#include <dlfcn.h>

#include <atomic>

#include "shim/base/log.h"
#include "shim/calls/driver_calls.h"
#include "shim/process/modules.h"
#include "shim/process/symbols.h"
#include "shim/runtime/runtime.h"

// The jump of each wrapped symbol; its row is found by name.
asm(R"(
    .macro amem_direct symbol
    .pushsection .rodata.str1.1, "aMS", @progbits, 1
.Lname_\symbol:
    .string "\symbol"
    .popsection
    .pushsection .data.amem_direct, "aw", @progbits
    .balign 8
.Lslot_\symbol:
    .quad .Lfirst_\symbol
    .quad .Lname_\symbol
    .popsection
    .pushsection amem_direct, "ax", @progbits
    .balign 16
    .globl \symbol
    .type \symbol, @function
\symbol:
    .cfi_startproc
    endbr64
    jmp *.Lslot_\symbol(%rip)
.Lfirst_\symbol:
    endbr64
    leaq .Lslot_\symbol(%rip), %r11
    jmp amem_direct_first
    .cfi_endproc
    .size \symbol, .-\symbol
    .popsection
    .endm
)");
#define WRAPPED(api, version, type, symbol) asm("amem_direct " #symbol);
#include "shim/calls/driver_calls.inc"

// The linker's names for the bounds of the section that the jumps lie in.
extern "C" __attribute__((visibility("hidden"))) const char __start_amem_direct[];
extern "C" __attribute__((visibility("hidden"))) const char __stop_amem_direct[];

namespace amem::shim {
namespace {

/// What a call does without a driver. Only a process that refers to a driver call without being
/// linked to the driver comes here (a weak symbol), and sees what it would see before cuInit.
CUresult no_driver() { return CUDA_ERROR_NOT_INITIALIZED; }

}  // namespace

/// As amem_direct lays it out.
struct DirectSlot {
  void* target;  // where the next call goes
  const char* symbol;
};

void warn_of_bypassed(const char* symbol, const void* driver_function) {
  const void* next = next_symbol(symbol);
  if (next == nullptr) ::dlerror();  // no news to anybody
  static std::atomic<bool> warned{false};
  if (next == nullptr || next == driver_function || warned.exchange(true)) return;
  log_warn(module_of(next) + " wraps driver calls (" + symbol +
           ") too, but nothing calls it. Put it before libamem_shim.so in LD_PRELOAD");
}

bool is_direct(const void* code) {
  return code >= __start_amem_direct && code < __stop_amem_direct;
}

}  // namespace amem::shim

/// Where a call of this slot is to go. Called by the assembly below.
extern "C" __attribute__((visibility("hidden"), used)) void* amem_direct_target(
    amem::shim::DirectSlot* slot) {
  using namespace amem::shim;
  void* target = driver_symbol(slot->symbol);
  if (target == nullptr) {  // not remembered: a libcuda may still be loaded
    target = next_symbol(slot->symbol);
    return target != nullptr ? target : reinterpret_cast<void*>(&no_driver);
  }
  if (!Runtime::disabled()) {
    warn_of_bypassed(slot->symbol, target);
    if (const Call* call = find_symbol(slot->symbol); call != nullptr) {
      Runtime::get();
      call->real->store(target, std::memory_order_release);
      target = call->wrapper;
    }
    trace("direct %s", slot->symbol);
  }
  __atomic_store_n(&slot->target, target, __ATOMIC_RELEASE);
  return target;
}

// The first call through a slot, which is in r11. Every register that can hold an argument is kept
// over the search for the target.
#if defined(__x86_64__)
asm(R"(
    .text
    .type amem_direct_first, @function
    .hidden amem_direct_first
    .globl amem_direct_first
amem_direct_first:
    .cfi_startproc
    subq $200, %rsp
    .cfi_adjust_cfa_offset 200
    movq %rdi, (%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7
    movaps %xmm\n, 64 + 16 * \n(%rsp)
    .endr
    movq %r11, %rdi
    call amem_direct_target
    movq (%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7
    movaps 64 + 16 * \n(%rsp), %xmm\n
    .endr
    addq $200, %rsp
    .cfi_adjust_cfa_offset -200
    jmp *%rax
    .cfi_endproc
    .size amem_direct_first, .-amem_direct_first
)");
#else
#error "the shim's direct calls are written for x86-64 only"
#endif
