// Requests: the pause and resume requests of ranks (GroupRequest) that wait to be answered.
//
// An operation from inside begins when every rank of the group has asked for it; this class knows
// who has asked, who has not, and when patience ends. It answers nobody: what it returns is to be
// answered by the caller.
//
// Pure; time comes in. Not synchronised; one Group owns it.
#pragma once

#include <cstdint>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/phases/task.h"

namespace amem {

class Requests {
 public:
  struct Request {
    RankId rank = 0;
    std::uint64_t seq = 0;  // of the rank's message; the Reply repeats it
    Task task = Operation::kPause;
    Time deadline = kNever;
  };

  /// A rank may have several threads ask, but not without limit.
  static constexpr std::size_t kMaxPerRank = 256;

  /// kResourceExhausted: the rank has too many requests waiting; this one was not taken.
  Status add(const Request& request);

  /// The rank has gone: its requests are forgotten.
  void forget(RankId rank);

  /// What is asked for, each once, in the order in which it was first asked.
  std::vector<Task> tasks() const;

  /// All requests for `task`, which leave this object.
  std::vector<Request> take(const Task& task);

  /// Every one of `ranks` (and there is one) has asked for `task`.
  bool complete(const Task& task, const std::vector<RankId>& ranks) const;
  /// Those of `ranks` that have not asked for `task`.
  std::vector<RankId> missing(const Task& task, const std::vector<RankId>& ranks) const;

  /// The earliest deadline among the requests for `task`.
  Time deadline(const Task& task) const;

 private:
  std::vector<Request> waiting_;
};

}  // namespace amem
