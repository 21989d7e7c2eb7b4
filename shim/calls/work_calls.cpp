// Wrappers of the calls that give the device work: each passes the gate and goes on to the driver.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <iterator>

#include "shim/calls/direct.h"
#include "shim/calls/interpose.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

enum Row {
#define GATED(api, version, type, symbol, per_thread) kRow_##api##_##type,
#include "shim/calls/gated_calls.inc"
#undef GATED
  kRows
};

std::atomic<void*> real[kRows];

/// Which rows take no stream, or stream 0, for the calling thread's own.
constexpr bool kPerThread[] = {
#define GATED(api, version, type, symbol, per_thread) per_thread,
#include "shim/calls/gated_calls.inc"
#undef GATED
};

/// Where a call's work goes, from its arguments. What names no stream goes to the default one. The
/// legacy one's begins when that of all others has ended.
template <class Arg>
void look_at(Gate::Work&, const Arg&) {}
void look_at(Gate::Work& work, CUstream stream) {
  if (stream != nullptr) work.stream = stream;
}
void look_at(Gate::Work& work, const CUlaunchConfig* config) {
  if (config != nullptr) look_at(work, config->hStream);
}

template <int kRow, class... Args>
Gate::Work work_of(const Args&... args) {
  Gate::Work work{true, kPerThread[kRow] ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY};
  (look_at(work, args), ...);
  return work;
}

template <int kRow, class Function>
struct Gated;

template <int kRow, class... Args>
struct Gated<kRow, CUresult (*)(Args...)> {
  static CUresult call(Args... args) noexcept {
    const Pass pass(*the_gate, the_gate->enter([&] { return work_of<kRow>(args...); }));
    if (pass.result() != CUDA_SUCCESS) return pass.result();
    return reinterpret_cast<CUresult (*)(Args...)>(real[kRow].load(std::memory_order_relaxed))(
        args...);
  }
};

const Call kCalls[] = {
#define GATED(api, version, type, symbol, per_thread)                              \
  {#api,                                                                           \
   version,                                                                        \
   per_thread,                                                                     \
   symbol,                                                                         \
   reinterpret_cast<void*>(&Gated<kRow_##api##_##type, PFN_##api##_##type>::call), \
   &real[kRow_##api##_##type]},
#include "shim/calls/gated_calls.inc"
#undef GATED
};

#define GATED(api, version, type, symbol, per_thread) AMEM_DIRECT(symbol);
#include "shim/calls/gated_calls.inc"
#undef GATED

}  // namespace

CallList work_calls() { return {std::begin(kCalls), std::end(kCalls)}; }

}  // namespace amem::shim
