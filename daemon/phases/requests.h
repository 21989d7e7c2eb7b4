// Requests: the pause and resume requests of ranks (GroupRequest) that wait to be answered.
//
// An operation from inside begins when every rank of the group has asked for it; this class knows
// who has asked, who has not, and when patience ends. It answers nobody: what it returns is to be
// answered by the caller.
//
// Each event of a group asks what waits, so what waits is kept by task, and few different tasks do.
//
// Pure; time comes in. Not synchronised; one Group owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
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
  /// Ranks that pause together ask for the same, so few different tasks wait at a time.
  static constexpr std::size_t kMaxTasks = 16;

  /// kResourceExhausted: the rank has too many requests waiting, or the group too many different
  /// ones; this one was not taken.
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
  struct Waiting {
    Task task = Operation::kPause;
    std::vector<Request> requests;  // not empty
    std::set<RankId> ranks;         // that have asked
    Time deadline = kNever;         // the earliest
  };
  const Waiting* find(const Task& task) const;

  std::vector<Waiting> waiting_;  // by the first request for each
  std::map<RankId, std::size_t> counts_;
};

}  // namespace amem
