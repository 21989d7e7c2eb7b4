// History: the operations that have ended, so that one can ask afterwards what took so long, or
// what went wrong. Those since the broker began; the oldest go when there are too many.
//
// For the loop's thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "common/status.h"
#include "daemon/base/ids.h"
#include "daemon/owners/owner.h"
#include "daemon/phases/actions.h"

namespace amem {

/// A pause or resume of one group. The group may be gone, so this has all that is told of it.
struct PastOperation {
  struct Face {
    int number = -1;  // the launcher's
    pid_t pid = 0;
  };
  std::uint64_t transaction = 0;  // that it was part of; 0: ranks asked for it
  bool swap = false;              // the transaction was one
  Owner owner;
  std::string group;
  std::chrono::system_clock::time_point began;
  Outcome outcome;
  std::map<RankId, Face> ranks;  // those that were there when it ended
};

/// Bytes that it copied to or from the pool.
std::uint64_t copied(const Outcome& outcome);

class History {
 public:
  static constexpr std::size_t kMost = 256;          // operations
  static constexpr std::size_t kMostSpans = 50'000;  // in all: some 10 MB

  /// Of too many, the oldest of the owner that has the most goes, so that nobody can push out what
  /// is others'. An operation that has too many spans by itself keeps none.
  void add(PastOperation operation);
  /// As they ended.
  const std::deque<PastOperation>& all() const { return operations_; }

 private:
  bool too_much() const { return operations_.size() > kMost || spans_ > kMostSpans; }
  void drop_one();

  std::deque<PastOperation> operations_;
  std::size_t spans_ = 0;
};

}  // namespace amem
