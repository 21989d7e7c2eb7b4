#include "shim/calls/interpose.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "shim/base/log.h"
#include "shim/base/trace.h"
#include "shim/calls/direct.h"
#include "shim/calls/nccl_api.h"
#include "shim/runtime/runtime.h"

// In a build with sanitizers their runtime looks its own functions up with our dlsym, before
// instrumented code can run.
#define AMEM_RUNS_BEFORE_SANITIZERS __attribute__((no_sanitize("address,undefined,thread")))

namespace amem::shim {
namespace {

std::atomic<void*> real_get_v1{nullptr};
std::atomic<void*> real_get_v2{nullptr};

/// A newer toolkit's programs may ask for an API version that we do not know. Where the driver then
/// has another function than for ours, its signature may be another one too.
template <class Lookup>
bool known(const char* api, const void* function, int version, const Lookup& lookup) {
  if (version <= CUDA_VERSION) return true;
  void* ours = nullptr;
  if (lookup(&ours, CUDA_VERSION) == CUDA_SUCCESS && ours == function) return true;
  log_warn(std::string("the program uses ") + api + " of CUDA " + std::to_string(version / 1000) +
           "." + std::to_string(version % 1000 / 10) +
           ", which is newer than this amem: memory that it gets there is not brokered");
  return false;
}

/// Replaces the driver's function by our wrapper for it. `lookup`: the same lookup for another
/// version.
template <class Lookup>
void wrap(const char* api, void** function, int version, cuuint64_t flags, const Lookup& lookup) {
  if (function == nullptr || *function == nullptr) return;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const Call* call = find_call(api, version, per_thread);
  if (call == nullptr || !known(api, *function, version, lookup)) return;
  call->real->store(*function, std::memory_order_release);
  *function = call->wrapper;
}

CUresult get_v1(const char* api, void** function, int version, cuuint64_t flags) {
  auto real = reinterpret_cast<PFN_cuGetProcAddress_v11030>(real_get_v1.load());
  const CUresult r = real(api, function, version, flags);
  const auto again = [&](void** f, int v) { return real(api, f, v, flags); };
  if (r == CUDA_SUCCESS) wrap(api, function, version, flags, again);
  return r;
}

CUresult get_v2(const char* api, void** function, int version, cuuint64_t flags,
                CUdriverProcAddressQueryResult* found) {
  auto real = reinterpret_cast<PFN_cuGetProcAddress_v12000>(real_get_v2.load());
  const CUresult r = real(api, function, version, flags, found);
  const auto again = [&](void** f, int v) { return real(api, f, v, flags, nullptr); };
  if (r == CUDA_SUCCESS) wrap(api, function, version, flags, again);
  return r;
}

const Call kLookupCalls[] = {
    {"cuGetProcAddress", 11030, false, "cuGetProcAddress", reinterpret_cast<void*>(&get_v1),
     &real_get_v1},
    {"cuGetProcAddress", 12000, false, "cuGetProcAddress_v2", reinterpret_cast<void*>(&get_v2),
     &real_get_v2},
};
AMEM_DIRECT("cuGetProcAddress");
AMEM_DIRECT("cuGetProcAddress_v2");

template <class Visit>
void for_each_call(Visit visit) {
  for (const Call& call : kLookupCalls) visit(call);
  for (const CallList list : {memory_calls(), capture_calls(), heap_calls(), ipc_calls(),
                              multicast_calls(), slab_calls(), unbrokered_calls(), work_calls()})
    for (const Call* call = list.begin; call != list.end; ++call) visit(*call);
}

}  // namespace

const Call* find_symbol(const char* symbol) {
  const Call* found = nullptr;
  for_each_call([&](const Call& call) {
    if (std::strcmp(call.symbol, symbol) == 0) found = &call;
  });
  return found;
}

const Call* find_call(const char* api, int version, bool per_thread) {
  const Call* best = nullptr;
  const Call* best_shared = nullptr;  // for calls that know no per-thread variant
  for_each_call([&](const Call& call) {
    if (call.version > version || std::strcmp(call.api, api) != 0) return;
    const Call*& slot = call.per_thread ? best : best_shared;
    if (slot == nullptr || call.version > slot->version) slot = &call;
  });
  return per_thread && best != nullptr ? best : best_shared;
}

AMEM_RUNS_BEFORE_SANITIZERS Dlsym real_dlsym() {
  // With the compiler's atomics: std::atomic's functions would be instrumented.
  static void* cached = nullptr;
  void* real = __atomic_load_n(&cached, __ATOMIC_ACQUIRE);
  if (real == nullptr) {
    // The versions under which the C library has exported dlsym on x86-64: since 2.34, and before.
    real = ::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (real == nullptr) real = ::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    __atomic_store_n(&cached, real, __ATOMIC_RELEASE);
  }
  return reinterpret_cast<Dlsym>(real);
}

}  // namespace amem::shim

using amem::shim::Call;
using amem::shim::Runtime;

/// What dlsym answers instead of the C library's; not ours: ask the C library.
struct DlsymAnswer {
  void* address = nullptr;
  bool ours = false;
};

/// Called by the assembly below, which takes the answer from two registers. `caller`: the address
/// that dlsym will return to.
extern "C" __attribute__((visibility("hidden"), used)) AMEM_RUNS_BEFORE_SANITIZERS DlsymAnswer
amem_dlsym_answer(void* handle, const char* name, const void* caller) {
  // Nearly every lookup of a process ends here, some of them before malloc works.
  const bool driver = name[0] == 'c' && name[1] == 'u';
  const bool nccl = name[0] == 'n' && name[1] == 'c' && name[2] == 'c';
  if (!driver && !nccl) return {};
  if (nccl) {
    if (Runtime::disabled()) return {};
    // AMem's patched NCCL exports these itself; callers look for them in libnccl. An NCCL that has
    // them keeps them.
    void* ours = amem::shim::find_nccl_call(name);
    if (ours == nullptr || amem::shim::real_dlsym()(handle, name) != nullptr) return {};
    ::dlerror();  // the failed lookup is no news to anybody
    return {ours, true};
  }
  const Call* call = amem::shim::find_symbol(name);
  if (call == nullptr) return {};
  void* real = amem::shim::driver_symbol(name);
  // Of a library in front of us the next one lies between us, or is our own export.
  const bool next = handle == RTLD_NEXT;
  if (next && real != nullptr && amem::shim::precedes_us(caller)) return {};
  void* found = amem::shim::real_dlsym()(handle, name);
  if (found == nullptr) return {};
  // A lookup in the whole process finds our export first, whether or not there is a driver.
  const bool direct = amem::shim::is_direct(found);
  if (real == nullptr) return {direct ? amem::shim::next_symbol(name) : nullptr, direct};
  if (Runtime::disabled()) return {real, direct};
  // Another library's function goes as it is: it comes to us by a lookup of its own. To take it for
  // the driver's would lead from it to us and from us to it, for ever. Behind us nobody is asked.
  if (found != real && !direct && !next) return {};
  if (found != real) amem::shim::warn_of_bypassed(name, real);
  Runtime::get();
  call->real->store(real, std::memory_order_release);
  amem::shim::trace("dlsym %s", name);
  return {call->wrapper, true};
}

extern "C" __attribute__((visibility("hidden"), used)) AMEM_RUNS_BEFORE_SANITIZERS void*
amem_real_dlsym() {
  return reinterpret_cast<void*>(amem::shim::real_dlsym());
}

// dlsym(RTLD_NEXT, …) means "after the library that called", which the C library learns from the
// return address. So what is not ours is answered by a jump, not a call: the C library sees the
// original caller.
#if defined(__x86_64__)
asm(R"(
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    movq 16(%rsp), %rdx
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call amem_dlsym_answer
    testb %dl, %dl
    jne 1f
    call amem_real_dlsym
    addq $8, %rsp
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
    .size dlsym, .-dlsym
)");
#else
#error "the shim's dlsym is written for x86-64 only"
#endif
