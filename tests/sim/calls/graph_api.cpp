// Graphs that are made node by node; what is asked of nodes, and what is changed in them and in
// executable graphs.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/sim/entry/api.h"
#include "tests/sim/entry/newer_calls.h"
#include "tests/sim/memory/copy.h"
#include "tests/sim/work/context.h"
#include "tests/sim/work/graph.h"

namespace sim {
namespace {

/// The device of a context; none: of the one that is current.
CUresult DeviceOf(CUcontext handle, int* device) {
  Context* context = nullptr;
  if (handle == nullptr) {
    const CUresult result = CurrentContext(&context);
    if (result != CUDA_SUCCESS) return result;
  } else {
    context = FindContext(handle);
    if (context == nullptr || !context->alive) return CUDA_ERROR_INVALID_CONTEXT;
  }
  *device = context->physical;
  return CUDA_SUCCESS;
}

CUresult MakeCopy(const CUDA_MEMCPY3D* copy, CUcontext context, Work* out) {
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int device = 0;
  CUresult result = DeviceOf(context, &device);
  if (result != CUDA_SUCCESS) return result;
  Transfer transfer;
  Side to = Side::kAny;
  Side from = Side::kAny;
  result = ReadCopy(*copy, &transfer, &to, &from);
  if (result != CUDA_SUCCESS) return result;
  Checked to_is;
  Checked from_is;
  result = CheckTransfer(transfer, to, from, device, &to_is, &from_is);
  if (result != CUDA_SUCCESS) return result;
  *out = {CU_GRAPH_NODE_TYPE_MEMCPY, [transfer, device] { return RunTransfer(transfer, device); }};
  out->params.copy = *copy;
  return CUDA_SUCCESS;
}

CUresult MakeSet(const CUDA_MEMSET_NODE_PARAMS* set, CUcontext context, Work* out) {
  if (set == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int device = 0;
  CUresult result = DeviceOf(context, &device);
  if (result != CUDA_SUCCESS) return result;
  Fill fill;
  result = ReadSet(*set, &fill);
  if (result != CUDA_SUCCESS) return result;
  result = CheckFill(fill, device);
  if (result != CUDA_SUCCESS) return result;
  *out = {CU_GRAPH_NODE_TYPE_MEMSET, [fill, device] { return RunFill(fill, device); }};
  out->params.set = *set;
  return CUDA_SUCCESS;
}

CUresult MakeChild(CUgraph handle, Work* out) {
  const std::shared_ptr<Graph> graph = FindGraph(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = ChildWork(CloneNodes(graph->nodes));
  return CUDA_SUCCESS;
}

constexpr auto kCopyBatch = static_cast<CUgraphNodeType>(amem::cuda::kCopyBatch);

CUresult MakeBatch(const amem::cuda::CopyBatchNode& given, Work* out) {
  if (given.count == 0 || given.destinations == nullptr || given.sources == nullptr ||
      given.sizes == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int device = 0;
  const CUresult result = DeviceOf(nullptr, &device);
  if (result != CUDA_SUCCESS) return result;
  const auto batch = std::make_shared<NodeParams::Batch>(
      NodeParams::Batch{{given.destinations, given.destinations + given.count},
                        {given.sources, given.sources + given.count},
                        {given.sizes, given.sizes + given.count}});
  *out = {kCopyBatch, [batch, device] {
            for (size_t i = 0; i < batch->sizes.size(); ++i) {
              const CUresult copied =
                  RunTransfer({batch->to[i], batch->from[i], batch->sizes[i]}, device);
              if (copied != CUDA_SUCCESS) return copied;
            }
            return CUDA_SUCCESS;
          }};
  out->params.batch = batch;
  return CUDA_SUCCESS;
}

CUresult Make(const CUgraphNodeParams* params, Work* out) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (params->type == kCopyBatch) {
    amem::cuda::CopyBatchNode batch;
    memcpy(&batch, &params->reserved1, sizeof batch);
    return MakeBatch(batch, out);
  }
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return MakeCopy(&params->memcpy.copyParams, params->memcpy.copyCtx, out);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& given = params->memset;
      const CUDA_MEMSET_NODE_PARAMS set{given.dst,         given.pitch, given.value,
                                        given.elementSize, given.width, given.height};
      return MakeSet(&set, given.ctx, out);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return MakeChild(params->graph.graph, out);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult Create(CUgraph* out, unsigned flags) {
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock = LockDriver();
  const std::shared_ptr<Graph> graph = NewGraph();
  PublishGraph(graph);
  *out = graph->handle;
  return CUDA_SUCCESS;
}

/// `make`: fills in the node's work.
template <typename Maker>
CUresult Add(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies, size_t count,
             const Maker& make) {
  const Lock lock = LockDriver();
  const std::shared_ptr<Graph> graph = FindGraph(handle);
  if (out == nullptr || graph == nullptr || (dependencies == nullptr && count > 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<CUgraphNode> before(dependencies, dependencies + count);
  for (const CUgraphNode each : before) {
    if (graph->Find(each) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  }
  Work work;
  const CUresult result = make(&work);
  if (result != CUDA_SUCCESS) return result;
  *out = graph->Add(std::move(work), std::move(before));
  return CUDA_SUCCESS;
}

/// Gives a node other work of its type.
template <typename Maker>
CUresult Change(GraphNode* node, const Maker& make) {
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Work work;
  const CUresult result = make(&work);
  if (result != CUDA_SUCCESS) return result;
  if (work.type != node->work.type) return CUDA_ERROR_INVALID_VALUE;
  node->work = std::move(work);
  return CUDA_SUCCESS;
}

template <typename Maker>
CUresult SetParams(CUgraphNode node, const Maker& make) {
  const Lock lock = LockDriver();
  return Change(FindNode(node), make);
}

template <typename Changer>
CUresult ChangeExec(CUgraphExec handle, const Changer& change) {
  const Lock lock = LockDriver();
  const std::shared_ptr<const GraphExec> exec = FindGraphExec(handle);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphExec changed = *exec;
  const CUresult result = change(changed);
  if (result == CUDA_SUCCESS) ReplaceGraphExec(handle, std::move(changed));
  return result;
}

template <typename Maker>
CUresult SetExecParams(CUgraphExec exec, CUgraphNode node, const Maker& make) {
  return ChangeExec(exec, [&](GraphExec& changed) { return Change(changed.Find(node), make); });
}

CUresult SetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned enabled) {
  return ChangeExec(exec, [&](GraphExec& changed) {
    GraphNode* const node = changed.Find(handle);
    if (node == nullptr || (node->work.type != CU_GRAPH_NODE_TYPE_KERNEL &&
                            node->work.type != CU_GRAPH_NODE_TYPE_MEMCPY &&
                            node->work.type != CU_GRAPH_NODE_TYPE_MEMSET)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    node->enabled = enabled != 0;
    return CUDA_SUCCESS;
  });
}

CUresult Update(CUgraphExec exec, CUgraph handle, CUgraphExecUpdateResultInfo* info) {
  if (info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *info = {};
  return ChangeExec(exec, [&](GraphExec& changed) {
    const std::shared_ptr<Graph> graph = FindGraph(handle);
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool same = std::equal(
        changed.nodes.begin(), changed.nodes.end(), graph->nodes.begin(), graph->nodes.end(),
        [](const GraphNode& a, const GraphNode& b) { return a.work.type == b.work.type; });
    if (!same) {
      info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
      return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (size_t i = 0; i < changed.nodes.size(); ++i) changed.nodes[i].work = graph->nodes[i].work;
    return CUDA_SUCCESS;
  });
}

/// `answer`: of the node, if there is one of this type.
template <typename Answer>
CUresult Ask(CUgraphNode handle, CUgraphNodeType type, const Answer& answer) {
  const Lock lock = LockDriver();
  const GraphNode* const node = FindNode(handle);
  if (node == nullptr || node->work.type != type) return CUDA_ERROR_INVALID_VALUE;
  answer(node->work.params);
  return CUDA_SUCCESS;
}

CUresult Type(CUgraphNode handle, CUgraphNodeType* type) {
  const Lock lock = LockDriver();
  const GraphNode* const node = FindNode(handle);
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->work.type;
  return CUDA_SUCCESS;
}

CUresult Params(CUgraphNode handle, CUgraphNodeParams* out) {
  const Lock lock = LockDriver();
  const GraphNode* const node = FindNode(handle);
  if (node == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = {};
  out->type = node->work.type;
  const NodeParams& params = node->work.params;
  if (out->type == CU_GRAPH_NODE_TYPE_MEMCPY) out->memcpy.copyParams = params.copy;
  if (out->type == CU_GRAPH_NODE_TYPE_MEMSET) {
    const CUDA_MEMSET_NODE_PARAMS& set = params.set;
    out->memset = {set.dst, set.pitch, set.value, set.elementSize, set.width, set.height, nullptr};
  }
  if (out->type == kCopyBatch) {
    NodeParams::Batch& batch = *params.batch;
    const amem::cuda::CopyBatchNode told{batch.sizes.size(), batch.to.data(), batch.from.data(),
                                         batch.sizes.data()};
    memcpy(&out->reserved1, &told, sizeof told);
  }
  return CUDA_SUCCESS;
}

CUresult Child(CUgraphNode node, CUgraph* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Ask(node, CU_GRAPH_NODE_TYPE_GRAPH, [&](const NodeParams& params) {
    PublishGraph(params.child);  // known from now on
    *out = params.child->handle;
  });
}

}  // namespace
}  // namespace sim

SIM_CALL(cuGraphCreate, (CUgraph * graph, unsigned flags), Create(graph, flags))
SIM_CALL(cuGraphAddMemcpyNode,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
          const CUDA_MEMCPY3D* copy, CUcontext context),
         Add(node, graph, dependencies, count,
             [&](Work* work) { return MakeCopy(copy, context, work); }))
SIM_CALL(cuGraphAddMemsetNode,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
          const CUDA_MEMSET_NODE_PARAMS* set, CUcontext context),
         Add(node, graph, dependencies, count,
             [&](Work* work) { return MakeSet(set, context, work); }))
SIM_CALL(cuGraphAddChildGraphNode,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
          CUgraph child),
         Add(node, graph, dependencies, count, [&](Work* work) { return MakeChild(child, work); }))
SIM_CALL(cuGraphAddNode,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
          CUgraphNodeParams* params),
         Add(node, graph, dependencies, count, [&](Work* work) { return Make(params, work); }))
SIM_CALL(cuGraphAddNode_v2,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies,
          const CUgraphEdgeData*, size_t count, CUgraphNodeParams* params),
         Add(node, graph, dependencies, count, [&](Work* work) { return Make(params, work); }))
SIM_CALL(cuGraphAddNode_v3,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies,
          const CUgraphEdgeData*, size_t count, CUgraphNodeParams* params),
         Add(node, graph, dependencies, count, [&](Work* work) { return Make(params, work); }))

SIM_CALL(cuGraphNodeGetParams, (CUgraphNode node, CUgraphNodeParams* params), Params(node, params))
SIM_CALL(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType* type), Type(node, type))
SIM_CALL(cuGraphMemcpyNodeGetParams, (CUgraphNode node, CUDA_MEMCPY3D* copy),
         Ask(node, CU_GRAPH_NODE_TYPE_MEMCPY, [&](const NodeParams& of) { *copy = of.copy; }))
SIM_CALL(cuGraphMemsetNodeGetParams, (CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* set),
         Ask(node, CU_GRAPH_NODE_TYPE_MEMSET, [&](const NodeParams& of) { *set = of.set; }))
SIM_CALL(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph* child), Child(node, child))

SIM_CALL(cuGraphMemcpyNodeSetParams, (CUgraphNode node, const CUDA_MEMCPY3D* copy),
         SetParams(node, [&](Work* work) { return MakeCopy(copy, nullptr, work); }))
SIM_CALL(cuGraphMemsetNodeSetParams, (CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* set),
         SetParams(node, [&](Work* work) { return MakeSet(set, nullptr, work); }))
SIM_CALL(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams* params),
         SetParams(node, [&](Work* work) { return Make(params, work); }))
SIM_CALL(cuGraphNodeSetParams_v2, (CUgraphNode node, CUgraphNodeParams* params),
         SetParams(node, [&](Work* work) { return Make(params, work); }))

SIM_CALL(cuGraphExecMemcpyNodeSetParams,
         (CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* copy, CUcontext context),
         SetExecParams(exec, node, [&](Work* work) { return MakeCopy(copy, context, work); }))
SIM_CALL(cuGraphExecMemsetNodeSetParams,
         (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* set,
          CUcontext context),
         SetExecParams(exec, node, [&](Work* work) { return MakeSet(set, context, work); }))
SIM_CALL(cuGraphExecChildGraphNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraph child),
         SetExecParams(exec, node, [&](Work* work) { return MakeChild(child, work); }))
SIM_CALL(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params),
         SetExecParams(exec, node, [&](Work* work) { return Make(params, work); }))
SIM_CALL(cuGraphExecUpdate_v2, (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info),
         Update(exec, graph, info))
SIM_CALL(cuGraphNodeSetEnabled, (CUgraphExec exec, CUgraphNode node, unsigned enabled),
         SetEnabled(exec, node, enabled))
