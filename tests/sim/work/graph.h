// Graphs, as far as stream capture makes them: recorded work, replayed in the order of recording.
//
// That order satisfies every dependency; branches of a graph do not run at the same time here. All
// functions REQUIRE the driver mutex.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <vector>

namespace sim {

struct GraphNode {
  CUgraphNode handle = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::function<CUresult()> run;  // empty: only dependencies
  std::vector<CUgraphNode> dependencies;
};

struct Graph {
  CUgraph handle = nullptr;
  std::vector<GraphNode> nodes;

  CUgraphNode Add(CUgraphNodeType type, std::function<CUresult()> run,
                  std::vector<CUgraphNode> dependencies);
  /// Whether `node` is in `from` or something `from` depends on.
  bool Reaches(const std::vector<CUgraphNode>& from, CUgraphNode node) const;
};

struct GraphExec {
  std::vector<GraphNode> nodes;
};

std::shared_ptr<Graph> NewGraph();  // has a handle, but callers do not know it before PublishGraph
void PublishGraph(const std::shared_ptr<Graph>& graph);
std::shared_ptr<Graph> FindGraph(CUgraph handle);
bool EraseGraph(CUgraph handle);

CUgraphExec AddGraphExec(std::shared_ptr<const GraphExec> exec);
std::shared_ptr<const GraphExec> FindGraphExec(CUgraphExec handle);
bool EraseGraphExec(CUgraphExec handle);

/// Runs the nodes one after the other; stops at the first error. Needs no lock.
CUresult RunGraph(const GraphExec& exec);

}  // namespace sim
