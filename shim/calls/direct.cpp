#include "shim/calls/direct.h"

#include <cuda.h>
#include <dlfcn.h>
#include <link.h>

#include <atomic>

#include "shim/base/log.h"
#include "shim/base/trace.h"
#include "shim/process/modules.h"
#include "shim/runtime/runtime.h"

// The linker's names for the bounds of the section that the jumps lie in.
extern "C" __attribute__((visibility("hidden"))) const char __start_amem_direct[];
extern "C" __attribute__((visibility("hidden"))) const char __stop_amem_direct[];

namespace amem::shim {
namespace {

/// What a call does without a driver. Only a process that refers to a driver call without being
/// linked to the driver comes here (a weak symbol), and sees what it would see before cuInit.
CUresult no_driver() { return CUDA_ERROR_NOT_INITIALIZED; }

const link_map* map_of(const void* code) {
  Dl_info info{};
  link_map* map = nullptr;
  return ::dladdr1(code, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0 ? map
                                                                                      : nullptr;
}

}  // namespace

/// As AMEM_DIRECT lays it out.
struct DirectSlot {
  void* target;  // where the next call goes
  const char* symbol;
};

void* driver_symbol(const char* symbol) {
  // Not RTLD_NEXT: that may find a stub of somebody's that leads back here, and does not look where
  // a module loaded with RTLD_LOCAL brings its libcuda.
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* found = real_dlsym()(library, symbol);
  ::dlclose(library);
  return found;
}

void* next_symbol(const char* symbol) { return real_dlsym()(RTLD_NEXT, symbol); }

bool precedes_us(const void* code) {
  const link_map* theirs = map_of(code);
  const link_map* ours = map_of(reinterpret_cast<const void*>(&precedes_us));
  if (theirs == nullptr || ours == nullptr) return false;
  // In the order of the search, and unchanged since the process began.
  for (const link_map* m = ours->l_prev; m != nullptr; m = m->l_prev)
    if (m == theirs) return true;
  return false;
}

void warn_of_bypassed(const char* symbol, const void* driver_function) {
  const void* next = next_symbol(symbol);
  if (next == nullptr) ::dlerror();  // no news to anybody
  static std::atomic<bool> warned{false};
  if (next == nullptr || next == driver_function || warned.exchange(true)) return;
  log_warn(module_of(next) + " wraps driver calls (" + symbol +
           "), too, and is not called: put it before libamem_shim.so in LD_PRELOAD");
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
    const Call* call = find_symbol(slot->symbol);
    Runtime::get();
    call->real->store(target, std::memory_order_release);
    target = call->wrapper;
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
    movaps %xmm0, 64(%rsp)
    movaps %xmm1, 80(%rsp)
    movaps %xmm2, 96(%rsp)
    movaps %xmm3, 112(%rsp)
    movaps %xmm4, 128(%rsp)
    movaps %xmm5, 144(%rsp)
    movaps %xmm6, 160(%rsp)
    movaps %xmm7, 176(%rsp)
    movq %r11, %rdi
    call amem_direct_target
    movq (%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movaps 64(%rsp), %xmm0
    movaps 80(%rsp), %xmm1
    movaps 96(%rsp), %xmm2
    movaps 112(%rsp), %xmm3
    movaps 128(%rsp), %xmm4
    movaps 144(%rsp), %xmm5
    movaps 160(%rsp), %xmm6
    movaps 176(%rsp), %xmm7
    addq $200, %rsp
    .cfi_adjust_cfa_offset -200
    jmp *%rax
    .cfi_endproc
    .size amem_direct_first, .-amem_direct_first
)");
#else
#error "the shim's direct calls are written for x86-64 only"
#endif
