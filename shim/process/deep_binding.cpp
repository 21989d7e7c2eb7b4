// RTLD_DEEPBIND: a library that is loaded so prefers the C library's dlsym and libcuda's calls to
// the shim's (shim/process/bypass.h). AMEM_SHIM_WITHOUT=deepbind has dlopen leave the flag out. So
// the shim exports dlopen, as a jump to the next one with the flags changed: the return address
// stays the caller's, by which the loader knows whose paths to search.
#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "shim/base/options.h"
#include "shim/process/symbols.h"

namespace amem::shim {
namespace {

/// Returns whether the environment says so. Asked for each library that is loaded with the flag.
bool clears() {
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  if (value_of(environment, "AMEM_SHIM_WITHOUT").empty() &&
      value_of(environment, "AMEM_DEEPBIND").empty())
    return false;
  std::vector<std::string> complaints;
  const Options options = Options::parse(environment, complaints);
  return options.clear_deepbind && !options.disabled;
}

}  // namespace
}  // namespace amem::shim

extern "C" __attribute__((visibility("hidden"), used)) AMEM_RUNS_BEFORE_SANITIZERS int
amem_dlopen_mode(int mode) {
  if ((mode & RTLD_DEEPBIND) == 0 || !amem::shim::clears()) return mode;
  return mode & ~RTLD_DEEPBIND;
}

/// Not simply the C library's: sanitizers have one in between.
extern "C" __attribute__((visibility("hidden"), used)) AMEM_RUNS_BEFORE_SANITIZERS void*
amem_next_dlopen() {
  static void* cached = nullptr;
  void* next = __atomic_load_n(&cached, __ATOMIC_ACQUIRE);
  if (next == nullptr) {
    next = amem::shim::next_symbol("dlopen");
    __atomic_store_n(&cached, next, __ATOMIC_RELEASE);
  }
  return next;
}

#if defined(__x86_64__)
asm(R"(
    .text
    .globl dlopen
    .type dlopen, @function
dlopen:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    movl %esi, %edi
    call amem_dlopen_mode
    movl %eax, 8(%rsp)
    call amem_next_dlopen
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    jmp *%rax
    .cfi_endproc
    .size dlopen, .-dlopen
)");
#else
#error "the shim's dlopen is written for x86-64 only"
#endif
