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

template <int kRow, class Function>
struct Gated;

template <int kRow, class... Args>
struct Gated<kRow, CUresult (*)(Args...)> {
  static CUresult call(Args... args) noexcept {
    const Pass pass(*the_gate);
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

#define GATED(api, version, type, symbol, per_thread) AMEM_DIRECT(symbol)
#include "shim/gated_calls.inc"
#undef GATED

}  // namespace

CallList work_calls() { return {std::begin(kCalls), std::end(kCalls)}; }

}  // namespace amem::shim
