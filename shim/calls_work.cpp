// Wrappers of the calls that give the device work: each passes the gate and goes on to the driver.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <iterator>

#include "shim/direct.h"
#include "shim/interpose.h"
#include "shim/runtime.h"

namespace amem::shim {
namespace {

enum Row {
#define GATED(api, version, type, symbol, per_thread) kRow_##api##_##type,
#include "shim/gated_calls.inc"
#undef GATED
  kRows
};

std::atomic<void*> real[kRows];

/// Where a call's work goes, from its arguments. The default streams begin when all others have
/// ended, and so does what names no stream.
template <class Arg>
void look_at(Gate::Work&, const Arg&) {}
void look_at(Gate::Work& work, CUstream stream) {
  if (stream != nullptr && stream != CU_STREAM_PER_THREAD) work.stream = stream;
}
void look_at(Gate::Work& work, const CUlaunchConfig* config) {
  if (config != nullptr) look_at(work, config->hStream);
}

template <class... Args>
Gate::Work work_of(const Args&... args) {
  Gate::Work work{true, CU_STREAM_LEGACY};
  (look_at(work, args), ...);
  return work;
}

template <int kRow, class Function>
struct Gated;

template <int kRow, class... Args>
struct Gated<kRow, CUresult (*)(Args...)> {
  static CUresult call(Args... args) noexcept {
    const Pass pass(*the_gate, the_gate->enter([&] { return work_of(args...); }));
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
#include "shim/gated_calls.inc"
#undef GATED
};

#define GATED(api, version, type, symbol, per_thread) AMEM_DIRECT(symbol);
#include "shim/gated_calls.inc"
#undef GATED

}  // namespace

CallList work_calls() { return {std::begin(kCalls), std::end(kCalls)}; }

}  // namespace amem::shim
