// GraphCopies: which memory the copies and sets in executable graphs name, for launches while some
// memory is paused.
//
// An executable graph cannot be asked, and the graph that it was made of may have changed by then,
// or be gone. So the nodes are read when it is made, or updated from another graph, and what is
// changed in a node later is noted. Where it cannot be told which node that is, or a child graph
// has been changed as a whole, nothing is known any more: a launch must not wait for memory that it
// does not touch. A node of a type that amem does not know is unknown work: it may touch anything.
// Any thread.
#pragma once

#include <cuda.h>

#include <mutex>
#include <unordered_map>

#include "common/driver.h"
#include "shim/memory/operands.h"

namespace amem::shim {

class GraphCopies {
 public:
  explicit GraphCopies(const Driver& driver) : driver_(driver) {}

  /// It has been made of this graph.
  void made(CUgraphExec exec, CUgraph graph);
  /// It does what this graph does, which is of the same nodes.
  void updated(CUgraphExec exec, CUgraph graph);
  /// A copy or set in it now names this.
  void changed(CUgraphExec exec, CUgraphNode node, Operands named);
  void enabled(CUgraphExec exec, CUgraphNode node, bool is_enabled);
  /// It is gone, or what it copies is not known any more.
  void forget(CUgraphExec exec);

  /// What its copies and sets are known to name.
  Operands of(CUgraphExec exec);

 private:
  struct Node {
    Operands named;
    bool enabled = true;
  };
  using Nodes = std::unordered_map<CUgraphNode, Node>;
  struct Known {
    Nodes nodes;
    bool updated = false;  // they are those of another graph; who changes one names its own
  };
  void read(CUgraph graph, Nodes& nodes) const;
  Operands of_newer(CUgraphNode node) const;

  const Driver& driver_;
  std::mutex mutex_;  // guards what follows; never held over the driver
  /// The node, where it is known. REQUIRES: the lock is held.
  Node* find(CUgraphExec exec, CUgraphNode node);

  std::unordered_map<CUgraphExec, Known> known_;
};

}  // namespace amem::shim
