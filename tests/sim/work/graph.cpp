#include "tests/sim/work/graph.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

namespace sim {
namespace {

// One counter for all kinds, so that a graph's handle is never also a node's.
uint64_t g_last_handle = 0x9a000000;

template <typename Handle>
Handle NextHandle() {
  return reinterpret_cast<Handle>(g_last_handle += 16);
}

std::unordered_map<CUgraph, std::shared_ptr<Graph>>& Graphs() {
  static auto* const graphs = new std::unordered_map<CUgraph, std::shared_ptr<Graph>>();
  return *graphs;
}

std::unordered_map<CUgraphExec, std::shared_ptr<const GraphExec>>& Execs() {
  static auto* const execs =
      new std::unordered_map<CUgraphExec, std::shared_ptr<const GraphExec>>();
  return *execs;
}

GraphNode* FindIn(std::vector<GraphNode>& nodes, CUgraphNode handle) {
  const auto it = std::find_if(nodes.begin(), nodes.end(),
                               [&](const GraphNode& node) { return node.handle == handle; });
  return it == nodes.end() ? nullptr : &*it;
}

}  // namespace

CUgraphNode Graph::Add(Work work, std::vector<CUgraphNode> dependencies) {
  const auto node = NextHandle<CUgraphNode>();
  nodes.push_back({node, std::move(work), std::move(dependencies)});
  return node;
}

GraphNode* Graph::Find(CUgraphNode node) { return FindIn(nodes, node); }

GraphNode* GraphExec::Find(CUgraphNode node) { return FindIn(nodes, node); }

bool Graph::Reaches(const std::vector<CUgraphNode>& from, CUgraphNode node) const {
  std::vector<CUgraphNode> reached = from;
  // Nodes are in topological order, so one pass from the back finds everything.
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    if (std::find(reached.begin(), reached.end(), it->handle) == reached.end()) continue;
    reached.insert(reached.end(), it->dependencies.begin(), it->dependencies.end());
  }
  return std::find(reached.begin(), reached.end(), node) != reached.end();
}

std::shared_ptr<Graph> NewGraph() {
  auto graph = std::make_shared<Graph>();
  graph->handle = NextHandle<CUgraph>();
  return graph;
}

void PublishGraph(const std::shared_ptr<Graph>& graph) { Graphs()[graph->handle] = graph; }

std::shared_ptr<Graph> FindGraph(CUgraph handle) {
  const auto it = Graphs().find(handle);
  return it == Graphs().end() ? nullptr : it->second;
}

bool EraseGraph(CUgraph handle) { return Graphs().erase(handle) != 0; }

GraphNode* FindNode(CUgraphNode handle) {
  for (const auto& [graph_handle, graph] : Graphs()) {
    if (GraphNode* const node = graph->Find(handle); node != nullptr) return node;
  }
  return nullptr;
}

std::shared_ptr<Graph> CloneNodes(const std::vector<GraphNode>& nodes) {
  std::shared_ptr<Graph> clone = NewGraph();
  std::unordered_map<CUgraphNode, CUgraphNode> handles;
  for (const GraphNode& node : nodes) {
    std::vector<CUgraphNode> dependencies;
    for (const CUgraphNode each : node.dependencies) dependencies.push_back(handles.at(each));
    handles[node.handle] = clone->Add(node.work, std::move(dependencies));
    clone->nodes.back().enabled = node.enabled;
  }
  return clone;
}

Work ChildWork(std::shared_ptr<Graph> child) {
  Work work{CU_GRAPH_NODE_TYPE_GRAPH, [child] { return RunGraph(child->nodes); }};
  work.params.child = std::move(child);
  return work;
}

CUgraphExec AddGraphExec(std::shared_ptr<const GraphExec> exec) {
  const auto handle = NextHandle<CUgraphExec>();
  Execs().emplace(handle, std::move(exec));
  return handle;
}

std::shared_ptr<const GraphExec> FindGraphExec(CUgraphExec handle) {
  const auto it = Execs().find(handle);
  return it == Execs().end() ? nullptr : it->second;
}

bool EraseGraphExec(CUgraphExec handle) { return Execs().erase(handle) != 0; }

void ReplaceGraphExec(CUgraphExec handle, GraphExec exec) {
  Execs().at(handle) = std::make_shared<const GraphExec>(std::move(exec));
}

CUresult RunGraph(const std::vector<GraphNode>& nodes) {
  for (const GraphNode& node : nodes) {
    if (!node.enabled || !node.work.run) continue;
    const CUresult result = node.work.run();
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace sim
