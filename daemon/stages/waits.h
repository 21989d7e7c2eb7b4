// Waits: callers that wait for something that a stage does: the first turn of a group, its lease,
// or the end of a switch. A wait ends once: with what was waited for, at its deadline, or because
// its caller has gone. Until then nothing has begun for it.
//
// For the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/ids.h"
#include "daemon/owners/account.h"

namespace amem {

class StageWaits {
 public:
  enum class For : std::uint8_t { kStart, kLease, kSwitch };
  using Number = std::uint64_t;
  /// Is told once how it went.
  using Done = std::function<void(const Status&)>;

  struct Wait {
    For what = For::kLease;
    GroupId group = 0;      // kSwitch: one of those that are switched
    Done done = {};         // null: it has been called; the caller is to start the group's ranks
    SharedFd process = {};  // the caller's; null: nobody can tell when it ends
    pid_t pid = 0;          // for people; 0: not known
    Charge charge = {};
    EventLoop::WatchId watch = 0;
    std::optional<EventLoop::TimerId> timer = {};
  };

  /// `ended`: a wait for the start of this group has ended.
  StageWaits(EventLoop& loop, std::function<void(GroupId)> ended)
      : loop_(loop), ended_(std::move(ended)) {}
  ~StageWaits();
  StageWaits(const StageWaits&) = delete;

  /// `timeout` 0: none. `late`: the text of kDeadlineExceeded.
  Number add(Wait wait, Duration timeout, const std::string& late);
  /// Its caller waits no more: kCancelled. Without effect if it has ended.
  void forget(Number number);
  void end(Number number, const Status& status);
  /// The caller of a start has its turn, and starts ranks now. It stays until it ends, or for
  /// `unseen` where nobody can tell that.
  void answer_start(Number number, Duration unseen);
  /// Returns this group's waits, in the order in which they came.
  std::vector<Number> of(GroupId group, For what) const;
  bool any(GroupId group, For what) const { return !of(group, what).empty(); }
  /// Somebody still waits.
  bool waits(Number number) const;
  /// Returns the processes that will start ranks of the group.
  std::vector<pid_t> pids(GroupId group) const;
  const std::map<Number, Wait>& all() const { return waits_; }
  /// Everybody is told so.
  void close(const Status& why);

 private:
  EventLoop& loop_;
  const std::function<void(GroupId)> ended_;
  std::map<Number, Wait> waits_;
  Number next_ = 1;
};

}  // namespace amem
