// Wrappers of the calls that make executable graphs, change them and end them: what they copy is
// noted, for launches while some memory is paused. They name memory as copies and sets do.
#include "shim/calls/driver_calls.h"
#include "shim/memory/operands.h"
#include "shim/runtime/await_memory.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

/// In a child of fork nothing is launched.
GraphCopies* graphs() {
  Runtime& runtime = Runtime::get();
  return runtime.forked() ? nullptr : &runtime.memory().graphs;
}

/// Without brokered memory nothing can be paused. A handle may be one again that has gone with its
/// context.
template <CallRow row, class... Rest>
CUresult instantiate(CUgraphExec* exec, CUgraph graph, Rest... rest) {
  const CUresult result = Runtime::ask_driver([&] { return real<row>()(exec, graph, rest...); });
  if (result != CUDA_SUCCESS) return result;
  if (Runtime::get().memory().brokered.is_empty())
    graphs()->forget(*exec);
  else
    graphs()->made(*exec, graph);
  return result;
}

template <CallRow row, class Params, class... Rest>
CUresult set_params(CUgraphExec exec, CUgraphNode node, Params* params, Rest... rest) {
  return with_memory(
      symbol_of(row), Gate::AnyWork(), [&] { return operands_of(params); },
      [&] {
        const CUresult r = real<row>()(exec, node, params, rest...);
        if (r == CUDA_SUCCESS) graphs()->changed(exec, node, operands_of(params));
        return r;
      });
}

CUresult updated(CUresult result, CUgraphExec exec, CUgraph graph) {
  if (result != CUDA_SUCCESS) return result;
  if (Runtime::get().memory().brokered.is_empty())
    graphs()->forget(exec);
  else
    graphs()->updated(exec, graph);
  return result;
}

CUresult changed_as_a_whole(CUresult result, CUgraphExec exec) {
  if (result == CUDA_SUCCESS) graphs()->forget(exec);
  return result;
}

}  // namespace

CUresult answer_cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node,
                                   char* log, std::size_t size) {
  return instantiate<kRow_cuGraphInstantiate>(exec, graph, error_node, log, size);
}

CUresult answer_cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node,
                                      char* log, std::size_t size) {
  return instantiate<kRow_cuGraphInstantiate_v2>(exec, graph, error_node, log, size);
}

CUresult answer_cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                            unsigned long long flags) {
  return instantiate<kRow_cuGraphInstantiateWithFlags>(exec, graph, flags);
}

CUresult answer_cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiate<kRow_cuGraphInstantiateWithParams>(exec, graph, params);
}

CUresult answer_cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiate<kRow_cuGraphInstantiateWithParams_ptsz>(exec, graph, params);
}

/// Forgotten before: its handle may be another one's at once.
CUresult answer_cuGraphExecDestroy(CUgraphExec exec) {
  if (GraphCopies* known = graphs(); known != nullptr) known->forget(exec);
  return real<kRow_cuGraphExecDestroy>()(exec);
}

CUresult answer_cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_MEMCPY3D* params, CUcontext context) {
  return set_params<kRow_cuGraphExecMemcpyNodeSetParams>(exec, node, params, context);
}

CUresult answer_cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_MEMSET_NODE_PARAMS* params,
                                               CUcontext context) {
  return set_params<kRow_cuGraphExecMemsetNodeSetParams>(exec, node, params, context);
}

CUresult answer_cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                         CUgraphNodeParams* params) {
  const CUresult r = set_params<kRow_cuGraphExecNodeSetParams>(exec, node, params);
  const bool child = r == CUDA_SUCCESS && number_of(params->type) == CU_GRAPH_NODE_TYPE_GRAPH;
  return child ? changed_as_a_whole(r, exec) : r;
}

CUresult answer_cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                   CUgraph child) {
  return changed_as_a_whole(real<kRow_cuGraphExecChildGraphNodeSetParams>()(exec, node, child),
                            exec);
}

CUresult answer_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                                  CUgraphExecUpdateResult* result) {
  return updated(real<kRow_cuGraphExecUpdate>()(exec, graph, error_node, result), exec, graph);
}

CUresult answer_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                     CUgraphExecUpdateResultInfo* info) {
  return updated(real<kRow_cuGraphExecUpdate_v2>()(exec, graph, info), exec, graph);
}

CUresult answer_cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned is_enabled) {
  const CUresult r = real<kRow_cuGraphNodeSetEnabled>()(exec, node, is_enabled);
  if (r == CUDA_SUCCESS) graphs()->enabled(exec, node, is_enabled != 0);
  return r;
}

}  // namespace amem::shim
