// Wrappers of the calls that begin and end stream captures. A pause waits until none is open.
#include "shim/calls/driver_calls.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

template <CallRow row, bool kPerThread, class... Rest>
CUresult begin(CUstream stream, Rest... rest) {
  const Pass pass(*the_gate, the_gate->enter_capture());
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  const CUresult r = real<row>()(stream, rest...);
  if (r == CUDA_SUCCESS) {
    // Before the pass ends: no moment without a reason to wait.
    Runtime& runtime = Runtime::get();
    LocalDevices* devices = runtime.devices();
    runtime.captures().began(stream, kPerThread,
                             devices != nullptr ? devices->current_context() : nullptr);
  }
  return r;
}

void over(CUstream stream, bool per_thread) {
  Runtime& runtime = Runtime::get();
  // While this capture still counts, the gate lets frees that were put off through.
  if (Heap* heap = runtime.heap(); heap != nullptr) heap->release_deferred(1);
  close_deferred(1);
  runtime.captures().ended(stream, per_thread);
}

template <CallRow row, bool kPerThread, class... Rest>
CUresult end(CUstream stream, Rest... rest) {
  const CUresult r = real<row>()(stream, rest...);
  // These say that this call ended nothing: the wrong thread asked, or the stream was not
  // capturing.
  if (r != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD && r != CUDA_ERROR_INVALID_VALUE &&
      r != CUDA_ERROR_ILLEGAL_STATE)
    over(stream, kPerThread);
  return r;
}

/// A capture does not outlive the stream that it began on.
template <CallRow row>
CUresult destroy(CUstream stream) {
  // Asked first: once the stream is gone, its handle may be another one's.
  Runtime& runtime = Runtime::get();
  const bool capturing = runtime.captures().open(stream, false);
  if (Heap* heap = runtime.heap(); heap != nullptr) heap->pools().stream_goes(stream);
  const CUresult r = real<row>()(stream);
  if (r == CUDA_SUCCESS && capturing) over(stream, false);
  return r;
}

}  // namespace

CUresult answer_cuStreamBeginCapture(CUstream stream) {
  return begin<kRow_cuStreamBeginCapture, false>(stream);
}

CUresult answer_cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin<kRow_cuStreamBeginCapture_ptsz, true>(stream);
}

CUresult answer_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin<kRow_cuStreamBeginCapture_v2, false>(stream, mode);
}

CUresult answer_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin<kRow_cuStreamBeginCapture_v2_ptsz, true>(stream, mode);
}

CUresult answer_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                            const CUgraphNode* nodes, const CUgraphEdgeData* edges,
                                            std::size_t count, CUstreamCaptureMode mode) {
  return begin<kRow_cuStreamBeginCaptureToGraph, false>(stream, graph, nodes, edges, count, mode);
}

CUresult answer_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                 const CUgraphNode* nodes,
                                                 const CUgraphEdgeData* edges, std::size_t count,
                                                 CUstreamCaptureMode mode) {
  return begin<kRow_cuStreamBeginCaptureToGraph_ptsz, true>(stream, graph, nodes, edges, count,
                                                            mode);
}

CUresult answer_cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode,
                                              CUgraph graph, GraphRecaptureCallback callback,
                                              void* data) {
  return begin<kRow_cuStreamBeginRecaptureToGraph, false>(stream, mode, graph, callback, data);
}

CUresult answer_cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode,
                                                   CUgraph graph, GraphRecaptureCallback callback,
                                                   void* data) {
  return begin<kRow_cuStreamBeginRecaptureToGraph_ptsz, true>(stream, mode, graph, callback, data);
}

// ---- into a command list of a graphics API ----

CUresult answer_cuStreamBeginCaptureToCig(CUstream stream, void* params) {
  return begin<kRow_cuStreamBeginCaptureToCig, false>(stream, params);
}

CUresult answer_cuStreamBeginCaptureToCig_ptsz(CUstream stream, void* params) {
  return begin<kRow_cuStreamBeginCaptureToCig_ptsz, true>(stream, params);
}

CUresult answer_cuStreamEndCaptureToCig(CUstream stream) {
  return end<kRow_cuStreamEndCaptureToCig, false>(stream);
}

CUresult answer_cuStreamEndCaptureToCig_ptsz(CUstream stream) {
  return end<kRow_cuStreamEndCaptureToCig_ptsz, true>(stream);
}

// ---- their end ----

CUresult answer_cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end<kRow_cuStreamEndCapture, false>(stream, graph);
}

CUresult answer_cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end<kRow_cuStreamEndCapture_ptsz, true>(stream, graph);
}

CUresult answer_cuStreamDestroy(CUstream stream) { return destroy<kRow_cuStreamDestroy>(stream); }

CUresult answer_cuStreamDestroy_v2(CUstream stream) {
  return destroy<kRow_cuStreamDestroy_v2>(stream);
}

}  // namespace amem::shim
