// Fan-out: to which nodes a leader has a call itself, and which of them pass on to which others.
//
// Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace amem {

/// Up to so many nodes the leader has a call to each.
inline constexpr std::size_t kAllDirect = 16;
/// Calls of a leader, and of a node that passes on.
inline constexpr std::size_t kMostCalls = 64;
/// Nodes of one operation: those that can be reached so.
inline constexpr std::size_t kMaxNodes = kMostCalls * kMostCalls;

struct Branch {
  std::size_t head;               // has a call from the leader
  std::vector<std::size_t> rest;  // the head passes on to them
};

/// Returns branches with nodes 0 to count - 1, each once. REQUIRES: count <= kMaxNodes.
std::vector<Branch> fan_out(std::size_t count);

}  // namespace amem
