#include "shim/memory/graph_copies.h"

#include <utility>
#include <vector>

namespace amem::shim {

/// A node of a type that CUDA 13.0 does not have. What its driver does not tell may be anything.
Operands GraphCopies::of_newer(CUgraphNode node) const {
  CUgraphNodeParams params{};
  if (driver_.cuGraphNodeGetParams_ == nullptr ||
      driver_.cuGraphNodeGetParams_(node, &params) != CUDA_SUCCESS)
    return {kAnything};
  return operands_of(&params);
}

void GraphCopies::read(CUgraph graph, Nodes& nodes) const {
  std::size_t count = 0;
  if (driver_.cuGraphGetNodes_(graph, nullptr, &count) != CUDA_SUCCESS) return;
  std::vector<CUgraphNode> all(count);
  if (driver_.cuGraphGetNodes_(graph, all.data(), &count) != CUDA_SUCCESS) return;
  for (const CUgraphNode node : all) {
    CUgraphNodeType said{};
    if (driver_.cuGraphNodeGetType_(node, &said) != CUDA_SUCCESS) continue;
    const int type = number_of(said);
    CUDA_MEMCPY3D copy{};
    CUDA_MEMSET_NODE_PARAMS set{};
    CUgraph child = nullptr;
    if (type == CU_GRAPH_NODE_TYPE_MEMCPY &&
        driver_.cuGraphMemcpyNodeGetParams_(node, &copy) == CUDA_SUCCESS)
      nodes[node].named = operands_of(const_cast<const CUDA_MEMCPY3D*>(&copy));
    if (type == CU_GRAPH_NODE_TYPE_MEMSET &&
        driver_.cuGraphMemsetNodeGetParams_(node, &set) == CUDA_SUCCESS)
      nodes[node].named = operands_of(const_cast<const CUDA_MEMSET_NODE_PARAMS*>(&set));
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        driver_.cuGraphChildGraphNodeGetGraph_(node, &child) == CUDA_SUCCESS)
      read(child, nodes);
    if (type != CU_GRAPH_NODE_TYPE_MEMCPY && type != CU_GRAPH_NODE_TYPE_MEMSET &&
        !names_no_memory(type))
      nodes[node].named = of_newer(node);
  }
}

void GraphCopies::made(CUgraphExec exec, CUgraph graph) {
  Nodes nodes;
  read(graph, nodes);
  const std::lock_guard lock(mutex_);
  if (nodes.empty())
    known_.erase(exec);
  else
    known_[exec] = {std::move(nodes)};
}

void GraphCopies::updated(CUgraphExec exec, CUgraph graph) {
  Known now;
  read(graph, now.nodes);
  const std::lock_guard lock(mutex_);
  const auto it = known_.find(exec);
  now.updated = it == known_.end();  // its own nodes nobody has read
  if (it != known_.end()) {
    // A node stays disabled. Of another graph's nodes nobody says which of them it is.
    for (const auto& [handle, node] : it->second.nodes) {
      const auto same = now.nodes.find(handle);
      if (same == now.nodes.end()) now.updated = true;
      if (node.enabled) continue;
      if (same == now.nodes.end()) return void(known_.erase(it));
      same->second.enabled = false;
    }
    now.updated = now.updated || it->second.updated;
  }
  if (now.nodes.empty())
    known_.erase(exec);
  else
    known_[exec] = std::move(now);
}

GraphCopies::Node* GraphCopies::find(CUgraphExec exec, CUgraphNode node) {
  const auto it = known_.find(exec);
  if (it == known_.end()) return nullptr;
  const auto found = it->second.nodes.find(node);
  if (found != it->second.nodes.end()) return &found->second;
  // It may be any of them. Else it neither copies nor sets.
  if (it->second.updated) known_.erase(it);
  return nullptr;
}

void GraphCopies::changed(CUgraphExec exec, CUgraphNode node, Operands named) {
  const std::lock_guard lock(mutex_);
  if (Node* found = find(exec, node); found != nullptr) found->named = std::move(named);
}

void GraphCopies::enabled(CUgraphExec exec, CUgraphNode node, bool is_enabled) {
  const std::lock_guard lock(mutex_);
  if (Node* found = find(exec, node); found != nullptr) found->enabled = is_enabled;
}

void GraphCopies::forget(CUgraphExec exec) {
  const std::lock_guard lock(mutex_);
  known_.erase(exec);
}

Operands GraphCopies::of(CUgraphExec exec) {
  const std::lock_guard lock(mutex_);
  const auto it = known_.find(exec);
  Operands all;
  if (it == known_.end()) return all;
  for (const auto& [handle, node] : it->second.nodes)
    if (node.enabled) all.insert(all.end(), node.named.begin(), node.named.end());
  return all;
}

}  // namespace amem::shim
