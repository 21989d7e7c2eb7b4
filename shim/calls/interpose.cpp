// Interposition: the shim supplies `dlsym` and `dlvsym`, and wraps what it and cuGetProcAddress
// hand out.
#include <dlfcn.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <string>

#include "shim/base/log.h"
#include "shim/calls/direct.h"
#include "shim/calls/driver_calls.h"
#include "shim/calls/nccl_api.h"
#include "shim/nic/nic_calls.h"
#include "shim/process/symbols.h"
#include "shim/process/unknown_calls.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

/// Asked for in place of a call that is hidden: so the driver itself says how it answers for a call
/// that it does not have.
constexpr const char* kNoSuchCall = "cuNoDriverHasThisCall";

/// Whether the program may have a call that libcuda has.
bool may_have(const char* name, const UnknownCalls::IsOf& is_of) {
  switch (knowledge_of(name)) {
    case Knowledge::kKnown:
      return true;
    case Knowledge::kHidden:
      log_debug(std::string(name) + " is hidden from the program");
      return false;
    case Knowledge::kUnknown:
      break;
  }
  return UnknownCalls::get().may_have(name, is_of);
}

/// Logs once that a program was built with a newer toolkit than the driver's.
template <class Lookup>
void compare_with_driver(int version, const Lookup& lookup) {
  static std::atomic<int> compared = kOldestVersion;  // with what is not newer it is not compared
  int before = compared.load(std::memory_order_relaxed);
  if (version <= before) return;
  void* found = nullptr;
  int driver = 0;
  if (lookup("cuDriverGetVersion", &found, kOldestVersion) != CUDA_SUCCESS || found == nullptr ||
      reinterpret_cast<CUresult (*)(int*)>(found)(&driver) != CUDA_SUCCESS)
    return;
  const bool newer = version > driver;
  if (!compared.compare_exchange_strong(before, newer ? INT_MAX : driver) || !newer) return;
  log_info("the program requests driver calls of CUDA " + cuda_version(version) +
           ", but the driver supports CUDA up to " + cuda_version(driver) +
           ", and has no newer calls");
}

/// A newer toolkit's programs may ask for a version that the table does not have. Where the driver
/// then has another function than for the table's, its signature may be another one too.
template <class Lookup>
bool newer_than_table(const void* function, int version, const Lookup& lookup) {
  if (version <= kTableVersion) return false;
  void* ours = nullptr;
  return lookup(&ours, kTableVersion) != CUDA_SUCCESS || ours != function;
}

/// Replaces the driver's function by our wrapper for it. False: the program may not have it.
/// `lookup`: the same lookup for another version.
template <class Lookup>
bool wrap(const char* api, void** function, int version, cuuint64_t flags, const Lookup& lookup) {
  if (function == nullptr || !like_driver_call(api)) return true;
  // The driver says of what it has for a newer version that the version does not suffice.
  if (*function == nullptr) return knowledge_of(api) == Knowledge::kKnown;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const auto is_of = [&](int listed) {
    void* theirs = nullptr;
    return lookup(&theirs, listed) == CUDA_SUCCESS && theirs == *function;
  };
  const Call* call = find_call(api, version, per_thread);
  if (call == nullptr) call = find_symbol(api);
  if (knowledge_of(api) == Knowledge::kKnown && newer_than_table(*function, version, lookup))
    return UnknownCalls::get().may_have(api, is_of, call == nullptr);
  if (call == nullptr) return may_have(api, is_of);
  call->real->store(*function, std::memory_order_release);
  *function = call->wrapper;
  return true;
}

}  // namespace

CUresult answer_cuGetProcAddress(const char* api, void** function, int version, cuuint64_t flags) {
  const auto get = real<kRow_cuGetProcAddress>();
  const CUresult r = get(api, function, version, flags);
  const auto again = [&](void** f, int v) { return get(api, f, v, flags); };
  compare_with_driver(version,
                      [&](const char* name, void** f, int v) { return get(name, f, v, flags); });
  if (r != CUDA_SUCCESS || wrap(api, function, version, flags, again)) return r;
  *function = nullptr;
  return get(kNoSuchCall, function, version, flags);
}

CUresult answer_cuGetProcAddress_v2(const char* api, void** function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult* found) {
  const auto get = real<kRow_cuGetProcAddress_v2>();
  const CUresult r = get(api, function, version, flags, found);
  const auto again = [&](void** f, int v) { return get(api, f, v, flags, nullptr); };
  compare_with_driver(
      version, [&](const char* name, void** f, int v) { return get(name, f, v, flags, nullptr); });
  if (r != CUDA_SUCCESS || wrap(api, function, version, flags, again)) return r;
  *function = nullptr;
  return get(kNoSuchCall, function, version, flags, found);
}

}  // namespace amem::shim

using amem::shim::Call;
using amem::shim::Runtime;

using amem::shim::SymbolAnswer;

/// A lookup of a driver call that is in no row of wrapped calls: what the table does not know of
/// libcuda's is not found.
static SymbolAnswer unwrapped_answer(void* handle, const char* name, const void* caller) {
  if (amem::shim::knowledge_of(name) == amem::shim::Knowledge::kKnown) return {};
  // Not the driver's, or another library's function of that name, or nothing at all.
  const void* real = amem::shim::driver_symbol(name);
  if (real == nullptr || Runtime::disabled()) return {};
  // RTLD_DEFAULT and RTLD_NEXT go by who asks, and our own lookup is made by us. A library that was
  // loaded with RTLD_LOCAL sees its own libcuda. What comes after a library is the driver's in the
  // end, even where another interposer is between.
  const bool drivers =
      handle == RTLD_NEXT || amem::shim::real_dlsym()(handle, name) == real ||
      (handle == RTLD_DEFAULT && amem::shim::symbol_for(caller, name, nullptr) == real);
  if (!drivers) return {};
  Runtime::get();  // the log's level
  if (amem::shim::may_have(name, [](int) { return true; })) return {};
  return {amem::shim::no_such_symbol(name), true};
}

/// A lookup of a driver call.
static SymbolAnswer driver_answer(void* handle, const char* name, const void* caller) {
  const Call* call = amem::shim::find_symbol(name);
  if (call == nullptr) return unwrapped_answer(handle, name, caller);
  void* real = amem::shim::driver_symbol(name);
  // The next function after a library in front of us lies between us, or is our own export.
  const bool next = handle == RTLD_NEXT;
  if (next && real != nullptr && amem::shim::precedes_us(caller)) return {};
  void* found = amem::shim::real_dlsym()(handle, name);
  if (found == nullptr) return {};
  // A lookup in the whole process finds our export first, whether or not there is a driver.
  const bool direct = amem::shim::is_direct(found);
  if (real == nullptr) return {direct ? amem::shim::next_symbol(name) : nullptr, direct};
  if (Runtime::disabled()) return {real, direct};
  // Another library's function goes as it is: it comes to us by a lookup of its own. To take it for
  // the driver's would lead from it to us and from us to it, without end. Behind us nobody is
  // asked.
  if (found != real && !direct && !next) return {};
  if (found != real) amem::shim::warn_of_bypassed(name, real);
  Runtime::get();
  call->real->store(real, std::memory_order_release);
  amem::shim::trace("dlsym %s", name);
  return {call->wrapper, true};
}

/// Called by the assembly below, which takes the answer from two registers. `caller`: the address
/// that dlsym will return to. What dlvsym has for a version is anything here.
extern "C" __attribute__((visibility("hidden"), used)) AMEM_RUNS_BEFORE_SANITIZERS SymbolAnswer
amem_dlsym_answer(void* handle, const char* name, const char* /*version*/, const void* caller) {
  // Nearly every lookup of a process ends here, some of them before malloc works.
  const bool driver = amem::shim::like_driver_call(name);
  const bool nccl = name[0] == 'n' && name[1] == 'c' && name[2] == 'c';
  // `{}` and not SymbolAnswer(), whose constructor would be instrumented.
  if (amem::shim::may_be_nic_call(name))
    return amem::shim::find_nic_symbol(handle, name, nullptr, caller);
  if (!driver && !nccl) return {};
  if (nccl) {
    if (Runtime::disabled()) return {};
    // AMem's patched NCCL exports these itself; callers look for them in libnccl. An NCCL that has
    // them keeps them.
    void* ours = amem::shim::find_nccl_call(name);
    // Who wraps the call and asks for the next one is to get that, and not us again.
    const bool replaced = handle != RTLD_NEXT && amem::shim::replaces_nccl_call(name);
    if (ours == nullptr && !replaced) return {};
    void* theirs = amem::shim::real_dlsym()(handle, name);
    if (replaced) return amem::shim::replace_nccl_call(name, theirs, caller);
    if (theirs != nullptr) return {};
    ::dlerror();  // hides the failed lookup from the program
    return {ours, true};
  }
  return driver_answer(handle, name, caller);
}

/// The same for dlvsym. The driver's calls and NCCL's have no versions, and so are not found by it.
extern "C" __attribute__((visibility("hidden"), used)) AMEM_RUNS_BEFORE_SANITIZERS SymbolAnswer
amem_dlvsym_answer(void* handle, const char* name, const char* version, const void* caller) {
  if (!amem::shim::may_be_nic_call(name)) return {};
  return amem::shim::find_nic_symbol(handle, name, version, caller);
}

extern "C" __attribute__((visibility("hidden"), used)) AMEM_RUNS_BEFORE_SANITIZERS void*
amem_real_dlsym() {
  return reinterpret_cast<void*>(amem::shim::real_dlsym());
}
extern "C" __attribute__((visibility("hidden"), used)) AMEM_RUNS_BEFORE_SANITIZERS void*
amem_real_dlvsym() {
  return reinterpret_cast<void*>(amem::shim::real_dlvsym());
}

// dlsym(RTLD_NEXT, …) and dlvsym(RTLD_NEXT, …) mean "after the library that called", which the C
// library learns from the return address. So what is not ours is answered by a jump, not a call:
// the C library sees the original caller.
#if defined(__x86_64__)
asm(R"(
    .macro amem_lookup name
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    movq 24(%rsp), %rcx
    call amem_\name\()_answer
    testb %dl, %dl
    jne 1f
    call amem_real_\name
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    jmp *%rax
    .cfi_adjust_cfa_offset 24
1:  addq $24, %rsp
    .cfi_adjust_cfa_offset -24
    ret
    .cfi_endproc
    .size \name, .-\name
    .endm

    .text
    amem_lookup dlsym
    amem_lookup dlvsym
)");
#else
#error "the shim's dlsym and dlvsym are written for x86-64 only"
#endif
