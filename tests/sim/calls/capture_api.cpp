// Stream capture and the graphs it makes.
#include <algorithm>

#include "tests/sim/entry/api.h"
#include "tests/sim/entry/newer_calls.h"
#include "tests/sim/work/capture.h"
#include "tests/sim/work/graph.h"
#include "tests/sim/work/stream.h"

namespace sim {
namespace {

template <typename Body>
CUresult WithStream(StreamRef ref, const Body& body) {
  const Lock lock = LockDriver();
  std::shared_ptr<Stream> stream;
  const CUresult result = FindStream(ref, &stream);
  return result != CUDA_SUCCESS ? result : body(stream);
}

CUresult Begin(StreamRef ref, CUstreamCaptureMode mode) {
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  return WithStream(ref, [&](const auto& stream) { return BeginCapture(stream, mode); });
}

/// The graph gets what is captured in place of what it has. Nobody is told what differs.
CUresult Recapture(StreamRef ref, CUstreamCaptureMode mode, CUgraph handle) {
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  return WithStream(ref, [&](const auto& stream) {
    const std::shared_ptr<Graph> graph = FindGraph(handle);
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = BeginCapture(stream, mode);
    if (result != CUDA_SUCCESS) return result;
    graph->nodes.clear();
    stream->capture->graph = graph;
    return CUDA_SUCCESS;
  });
}

CUresult End(StreamRef ref, CUgraph* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithStream(ref, [&](const auto& stream) { return EndCapture(stream, out); });
}

struct InfoOut {
  CUstreamCaptureStatus* status = nullptr;
  cuuint64_t* id = nullptr;
  CUgraph* graph = nullptr;
  const CUgraphNode** dependencies = nullptr;
  const CUgraphEdgeData** edges = nullptr;
  size_t* count = nullptr;
};

CUresult Info(StreamRef ref, const InfoOut& out) {
  if (out.status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithStream(ref, [&](const std::shared_ptr<Stream>& stream) {
    if (ConflictsWithCapture(*stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (stream->capture == nullptr) {
      *out.status = CU_STREAM_CAPTURE_STATUS_NONE;
      return CUDA_SUCCESS;
    }
    const Capture& capture = *stream->capture;
    *out.status = capture.invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture.invalidated) return CUDA_SUCCESS;
    if (out.id != nullptr) *out.id = capture.id;
    if (out.graph != nullptr) {
      // Known from now on: the caller may look at the nodes.
      PublishGraph(capture.graph);
      *out.graph = capture.graph->handle;
    }
    if (out.dependencies != nullptr) *out.dependencies = stream->capture_tail.data();
    if (out.edges != nullptr) *out.edges = nullptr;
    if (out.count != nullptr) *out.count = stream->capture_tail.size();
    return CUDA_SUCCESS;
  });
}

CUresult Exchange(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  *mode = ExchangeCaptureMode(*mode);
  return CUDA_SUCCESS;
}

CUresult Instantiate(CUgraphExec* out, CUgraph handle) {
  const Lock lock = LockDriver();
  const std::shared_ptr<Graph> graph = FindGraph(handle);
  if (out == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = AddGraphExec(std::make_shared<const GraphExec>(GraphExec{graph->nodes}));
  return CUDA_SUCCESS;
}

CUresult InstantiateWithParams(CUgraphExec* out, CUgraph handle,
                               CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = Instantiate(out, handle);
  params->hErrNode_out = nullptr;
  params->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult Launch(CUgraphExec handle, StreamRef ref) {
  return WithStream(ref, [&](const std::shared_ptr<Stream>& stream) {
    const std::shared_ptr<const GraphExec> exec = FindGraphExec(handle);
    if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // In a capture it becomes a child graph, which has nodes of its own.
    if (stream->capture != nullptr)
      return Submit(stream, ChildWork(CloneNodes(exec->nodes)), nullptr);
    return Submit(stream, {CU_GRAPH_NODE_TYPE_GRAPH, [exec] { return RunGraph(exec->nodes); }},
                  nullptr);
  });
}

CUresult Upload(CUgraphExec handle, StreamRef ref) {
  return WithStream(ref, [&](const auto&) {
    return FindGraphExec(handle) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult Nodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  const Lock lock = LockDriver();
  const std::shared_ptr<Graph> graph = FindGraph(handle);
  if (graph == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes != nullptr) {
    const size_t space = *count;
    for (size_t i = 0; i < space; ++i) {
      nodes[i] = i < graph->nodes.size() ? graph->nodes[i].handle : nullptr;
    }
  }
  *count = graph->nodes.size();
  return CUDA_SUCCESS;
}

CUresult DestroyGraph(CUgraph handle) {
  const Lock lock = LockDriver();
  return EraseGraph(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult DestroyExec(CUgraphExec handle) {
  const Lock lock = LockDriver();
  return EraseGraphExec(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace sim

SIM_CALL_PTSZ(cuStreamBeginCapture, (CUstream stream),
              Begin({stream, kDefault}, CU_STREAM_CAPTURE_MODE_GLOBAL))
SIM_CALL_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
              Begin({stream, kDefault}, mode))
SIM_CALL_PTSZ(cuStreamBeginRecaptureToGraph,
              (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, SimRecaptureCallback,
               void*),
              Recapture({stream, kDefault}, mode, graph))
SIM_CALL_PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph* graph), End({stream, kDefault}, graph))
SIM_CALL_PTSZ(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status),
              Info({stream, kDefault}, {.status = status}))
SIM_CALL_PTSZ(cuStreamGetCaptureInfo,
              (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id),
              Info({stream, kDefault}, {.status = status, .id = id}))
SIM_CALL_PTSZ(cuStreamGetCaptureInfo_v2,
              (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
               const CUgraphNode** dependencies, size_t* count),
              Info({stream, kDefault}, {.status = status,
                                        .id = id,
                                        .graph = graph,
                                        .dependencies = dependencies,
                                        .count = count}))
SIM_CALL_PTSZ(cuStreamGetCaptureInfo_v3,
              (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
               const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count),
              Info({stream, kDefault}, {.status = status,
                                        .id = id,
                                        .graph = graph,
                                        .dependencies = dependencies,
                                        .edges = edges,
                                        .count = count}))
SIM_CALL(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), Exchange(mode))
SIM_CALL(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long),
         Instantiate(exec, graph))
SIM_CALL_PTSZ(cuGraphInstantiateWithParams,
              (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params),
              InstantiateWithParams(exec, graph, params))
SIM_CALL_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), Launch(exec, {stream, kDefault}))
SIM_CALL_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), Upload(exec, {stream, kDefault}))
SIM_CALL(cuGraphGetNodes, (CUgraph graph, CUgraphNode* nodes, size_t* count),
         Nodes(graph, nodes, count))
SIM_CALL(cuGraphDestroy, (CUgraph graph), DestroyGraph(graph))
SIM_CALL(cuGraphExecDestroy, (CUgraphExec exec), DestroyExec(exec))
