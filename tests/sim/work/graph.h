// Graphs, made by stream capture or node by node: recorded work, replayed in the order of
// recording.
//
// That order satisfies every dependency; branches of a graph do not run at the same time here. All
// functions REQUIRE the driver mutex.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <vector>

namespace sim {

struct Graph;

/// What a node can be asked about, by its type.
struct NodeParams {
  CUDA_MEMCPY3D copy{};
  CUDA_MEMSET_NODE_PARAMS set{};
  std::shared_ptr<Graph> child;
  struct Batch {
    std::vector<CUdeviceptr> to;
    std::vector<CUdeviceptr> from;
    std::vector<size_t> sizes;
  };
  std::shared_ptr<Batch> batch{};  // of copies
};

/// Work of a stream, or a node's.
struct Work {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  /// Runs on the worker without any lock. An error becomes the context's sticky error. Can run
  /// often, in a graph. Empty: only dependencies.
  std::function<CUresult()> run;
  NodeParams params{};
};

struct GraphNode {
  CUgraphNode handle = nullptr;
  Work work;
  std::vector<CUgraphNode> dependencies;
  bool enabled = true;  // in an executable graph
};

struct Graph {
  CUgraph handle = nullptr;
  std::vector<GraphNode> nodes;

  CUgraphNode Add(Work work, std::vector<CUgraphNode> dependencies);
  GraphNode* Find(CUgraphNode node);
  /// Whether `node` is in `from` or something `from` depends on.
  bool Reaches(const std::vector<CUgraphNode>& from, CUgraphNode node) const;
};

struct GraphExec {
  std::vector<GraphNode> nodes;

  GraphNode* Find(CUgraphNode node);
};

std::shared_ptr<Graph> NewGraph();  // has a handle, but callers do not know it before PublishGraph
void PublishGraph(const std::shared_ptr<Graph>& graph);
std::shared_ptr<Graph> FindGraph(CUgraph handle);
bool EraseGraph(CUgraph handle);
/// A node of a graph that callers know.
GraphNode* FindNode(CUgraphNode handle);
/// A graph of these nodes as another one's child, which has handles of its own.
std::shared_ptr<Graph> CloneNodes(const std::vector<GraphNode>& nodes);
/// The work of a node that is this graph.
Work ChildWork(std::shared_ptr<Graph> child);

CUgraphExec AddGraphExec(std::shared_ptr<const GraphExec> exec);
std::shared_ptr<const GraphExec> FindGraphExec(CUgraphExec handle);
bool EraseGraphExec(CUgraphExec handle);
/// What is launched from now on; what runs is as it was. REQUIRES: there is one of this handle.
void ReplaceGraphExec(CUgraphExec handle, GraphExec exec);

/// Runs the nodes one after the other; stops at the first error. Needs no lock.
CUresult RunGraph(const std::vector<GraphNode>& nodes);

}  // namespace sim
