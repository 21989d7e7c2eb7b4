#include "shim/direct.h"

#include <cuda.h>
#include <dlfcn.h>

#include "shim/runtime.h"
#include "shim/trace.h"

// The linker's names for the bounds of the section that the jumps lie in.
extern "C" __attribute__((visibility("hidden"))) const char __start_amem_direct[];
extern "C" __attribute__((visibility("hidden"))) const char __stop_amem_direct[];

namespace amem::shim {
namespace {

/// What a call does without a driver. Only a process that refers to a driver call without being
/// linked to the driver comes here (a weak symbol), and sees what it would see before cuInit.
CUresult no_driver() { return CUDA_ERROR_NOT_INITIALIZED; }

}  // namespace

/// As AMEM_DIRECT lays it out.
struct DirectSlot {
  void* target;  // where the next call goes
  const char* symbol;
};

void* driver_symbol(const char* symbol) {
  const Dlsym real = real_dlsym();
  // The driver itself first. RTLD_NEXT may find a stub of somebody's that leads back here, and
  // does not look where a module loaded with RTLD_LOCAL brings its libcuda.
  if (void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); library != nullptr) {
    void* found = real(library, symbol);
    ::dlclose(library);
    if (found != nullptr) return found;
  }
  return real(RTLD_NEXT, symbol);
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
  // Not remembered: a libcuda may still be loaded.
  if (target == nullptr) return reinterpret_cast<void*>(&no_driver);
  if (!Runtime::disabled()) {
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
