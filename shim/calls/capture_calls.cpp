// Wrappers of the calls that begin and end stream captures. A pause waits until none is open.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <iterator>

#include "shim/calls/direct.h"
#include "shim/calls/interpose.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

// row, api, version, typedef, symbol, per-thread variant
#define AMEM_BEGIN_CALLS(X)                                                                  \
  X(begin, cuStreamBeginCapture, 10010, PFN_cuStreamBeginCapture_v10010,                     \
    "cuStreamBeginCapture_v2", false)                                                        \
  X(begin_ptsz, cuStreamBeginCapture, 10010, PFN_cuStreamBeginCapture_v10010_ptsz,           \
    "cuStreamBeginCapture_v2_ptsz", true)                                                    \
  X(begin_graph, cuStreamBeginCaptureToGraph, 12030, PFN_cuStreamBeginCaptureToGraph_v12030, \
    "cuStreamBeginCaptureToGraph", false)                                                    \
  X(begin_graph_ptsz, cuStreamBeginCaptureToGraph, 12030,                                    \
    PFN_cuStreamBeginCaptureToGraph_v12030_ptsz, "cuStreamBeginCaptureToGraph_ptsz", true)
#define AMEM_END_CALLS(X)                                                                       \
  X(end, cuStreamEndCapture, 10000, PFN_cuStreamEndCapture_v10000, "cuStreamEndCapture", false) \
  X(end_ptsz, cuStreamEndCapture, 10000, PFN_cuStreamEndCapture_v10000_ptsz,                    \
    "cuStreamEndCapture_ptsz", true)
#define AMEM_DESTROY_CALLS(X)                                                               \
  X(destroy_v1, cuStreamDestroy, 2000, PFN_cuStreamDestroy_v4000, "cuStreamDestroy", false) \
  X(destroy, cuStreamDestroy, 4000, PFN_cuStreamDestroy_v4000, "cuStreamDestroy_v2", false)

enum Row {
#define AMEM_ROW(row, ...) kRow_##row,
  AMEM_BEGIN_CALLS(AMEM_ROW) AMEM_END_CALLS(AMEM_ROW) AMEM_DESTROY_CALLS(AMEM_ROW)
#undef AMEM_ROW
      kRows
};

std::atomic<void*> real_functions[kRows];

template <class Function>
Function real(int row) {
  return reinterpret_cast<Function>(real_functions[row].load(std::memory_order_relaxed));
}

template <int kRow, bool kPerThread, class Function>
struct Begin;

template <int kRow, bool kPerThread, class... Rest>
struct Begin<kRow, kPerThread, CUresult (*)(CUstream, Rest...)> {
  static CUresult call(CUstream stream, Rest... rest) {
    const Pass pass(*the_gate, the_gate->enter_capture());
    if (pass.result() != CUDA_SUCCESS) return pass.result();
    const CUresult r = real<CUresult (*)(CUstream, Rest...)>(kRow)(stream, rest...);
    if (r == CUDA_SUCCESS) {
      // Before the pass ends: no moment without a reason to wait.
      Runtime& runtime = Runtime::get();
      Devices* devices = runtime.devices();
      runtime.captures().began(stream, kPerThread,
                               devices != nullptr ? devices->current_context() : nullptr);
    }
    return r;
  }
};

void over(CUstream stream, bool per_thread) {
  Runtime& runtime = Runtime::get();
  // While this capture still counts, the gate lets frees that were put off through.
  if (Heap* heap = runtime.heap(); heap != nullptr) heap->release_deferred(1);
  runtime.captures().ended(stream, per_thread);
}

template <int kRow, bool kPerThread>
CUresult end(CUstream stream, CUgraph* graph) {
  const CUresult r = real<CUresult (*)(CUstream, CUgraph*)>(kRow)(stream, graph);
  // These say that this call ended nothing: the wrong thread asked, or the stream was not
  // capturing.
  if (r != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD && r != CUDA_ERROR_INVALID_VALUE &&
      r != CUDA_ERROR_ILLEGAL_STATE)
    over(stream, kPerThread);
  return r;
}

/// A capture does not outlive the stream that it began on.
template <int kRow>
CUresult destroy(CUstream stream) {
  // Asked first: once the stream is gone, its handle may be another one's.
  const bool capturing = Runtime::get().captures().open(stream, false);
  const CUresult r = real<PFN_cuStreamDestroy_v4000>(kRow)(stream);
  if (r == CUDA_SUCCESS && capturing) over(stream, false);
  return r;
}

const Call kCalls[] = {
#define AMEM_CALL(api, version, row, symbol, per_thread, wrapper) \
  {api, version, per_thread, symbol, reinterpret_cast<void*>(wrapper), &real_functions[row]},
#define AMEM_BEGIN(row, api, version, type, symbol, per_thread) \
  AMEM_CALL(#api, version, kRow_##row, symbol, per_thread,      \
            (&Begin<kRow_##row, per_thread, type>::call))
#define AMEM_END(row, api, version, type, symbol, per_thread) \
  AMEM_CALL(#api, version, kRow_##row, symbol, per_thread,    \
            (static_cast<type>(&end<kRow_##row, per_thread>)))
#define AMEM_DESTROY(row, api, version, type, symbol, per_thread) \
  AMEM_CALL(#api, version, kRow_##row, symbol, per_thread, static_cast<type>(&destroy<kRow_##row>))
    AMEM_BEGIN_CALLS(AMEM_BEGIN) AMEM_END_CALLS(AMEM_END) AMEM_DESTROY_CALLS(AMEM_DESTROY)
#undef AMEM_DESTROY
#undef AMEM_END
#undef AMEM_BEGIN
#undef AMEM_CALL
};

#define AMEM_DIRECT_ROW(row, api, version, type, symbol, ...) AMEM_DIRECT(symbol);
AMEM_BEGIN_CALLS(AMEM_DIRECT_ROW)
AMEM_END_CALLS(AMEM_DIRECT_ROW)
AMEM_DESTROY_CALLS(AMEM_DIRECT_ROW)
#undef AMEM_DIRECT_ROW

}  // namespace

CallList capture_calls() { return {std::begin(kCalls), std::end(kCalls)}; }

}  // namespace amem::shim
