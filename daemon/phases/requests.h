// Requests: the pause and resume requests of ranks (GroupRequest) that wait to be answered.
//
// An operation from inside begins when every rank of the group has asked for it, or every rank of a
// unit; this class knows who has asked, who has not, and when patience ends. It answers nobody: the
// caller must answer what it returns.
//
// Each event of a group asks what waits, so what waits is kept by task, and few different tasks do.
//
// Pure; time comes in. Not synchronised; one Group owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/phases/task.h"

namespace amem {

/// Ranks that call as one: their requests are one operation.
struct RankSet {
  std::string name;         // of these ranks alone, in their group; empty: there is no set
  std::uint32_t count = 0;  // of its ranks
};

/// Ranks that must ask for the same: for one of them alone the others would lose memory, or their
/// set would be in two states.
struct RankUnit {
  std::set<RankId> ranks;         // those that have asked, and the others that are known
  std::set<RankId> missing;       // of these, have not asked
  std::set<std::string> lacking;  // sets that have more ranks than have asked: "2 of 4 …"
  bool sets = false;              // some rank is of a set
  bool alone = false;             // has been tried together with others, and failed

  bool complete() const { return missing.empty() && lacking.empty(); }
};

class Requests {
 public:
  struct Request {
    RankId rank = 0;
    std::uint64_t seq = 0;  // of the rank's message; the Reply repeats it
    Task task = Operation::kPause;
    Time deadline = kNever;
    RankSet set = {};
    Time tell_at = kNever;   // when people are told next that it waits
    bool alone = false;      // is not to be tried together with other units again
    bool withdrawn = false;  // nobody waits for it any more: it is not tried again
    std::string why = {};    // of one that was tried and waits again: what it waits for
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

  /// Returns what is asked for, each once, in the order in which it was first asked.
  std::vector<Task> tasks() const;

  /// All requests for `task`, which leave this object.
  std::vector<Request> take(const Task& task);
  /// Those that match.
  std::vector<Request> take(const Task& task, const std::function<bool(const Request&)>& match);
  /// Calls `change` with each request of these ranks for `task`, and puts the task behind others.
  void put_back(const Task& task, const std::set<RankId>& ranks,
                const std::function<void(Request&)>& change);
  /// Nobody waits for this one any more.
  void withdraw(const Task& task, RankId rank, std::uint64_t seq);
  /// All requests for `task`, in order.
  const std::vector<Request>& of(const Task& task) const;

  /// Returns the units of the ranks that have asked for `task`; each rank is in one. `linked`:
  /// ranks that must ask with this one.
  std::vector<RankUnit> units(const Task& task,
                              const std::function<std::set<RankId>(RankId)>& linked) const;

  /// Every one of `ranks` (and there is one) has asked for `task`.
  bool complete(const Task& task, const std::vector<RankId>& ranks) const;
  /// Those of `ranks` that have not asked for `task`.
  std::vector<RankId> missing(const Task& task, const std::vector<RankId>& ranks) const;

  /// Returns the earliest time at which a request that waits must be reported to people.
  Time tell_at() const;
  /// The tasks of those that are due by now; they are due again after `interval`.
  std::vector<Task> tell(Time now, Duration interval);

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
  Waiting* find(const Task& task) { return const_cast<Waiting*>(std::as_const(*this).find(task)); }

  std::vector<Waiting> waiting_;  // by the first request for each
  std::map<RankId, std::size_t> counts_;
};

}  // namespace amem
