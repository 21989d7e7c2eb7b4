// Starts: groups that are to begin in a stage, from when somebody asks to start them until their
// first rank is there.
//
// Such a group is no group yet: it has an id, which its first rank gives to it, and a place in its
// stage. It lasts as long as somebody waits for its first turn, or a process that has had it lives.
//
// For the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/ids.h"
#include "daemon/owners/account.h"
#include "daemon/stages/gpu_stage.h"

namespace amem {

class Starts {
 public:
  using Number = std::uint64_t;
  /// Is told once how it went. Must not call this object.
  using Done = std::function<void(const Status&)>;

  struct Start {
    GroupId id = 0;
    std::string name;
    std::shared_ptr<Account> account;
    GpuStage* stage = nullptr;
    bool runs = false;       // it has its turn; without ranks
    bool has_ranks = false;  // from here on it is a group
  };

  /// `gone`: nobody waits for it, and it has no ranks and will have none.
  Starts(EventLoop& loop, std::function<void(const Start&)> gone)
      : loop_(loop), gone_(std::move(gone)) {}
  ~Starts();
  Starts(const Starts&) = delete;

  /// Null: there is none.
  Start* find(const Account& account, const std::string& name);
  Start* find(GroupId id);
  /// Somebody has to wait for it then.
  Start& add(Start start);
  /// For the group's turn. `process`: which is to become its rank, or to start its ranks; null:
  /// nobody can tell when it ends. `timeout` 0: none; kDeadlineExceeded. kResourceExhausted: the
  /// owner's quota. Returns a number for forget(); 0: `done` has been called.
  Number wait(Start& start, const SharedFd& process, Duration timeout, Done done);
  /// Nobody waits any more. Without effect if the turn has come.
  void forget(Number number);
  /// Whoever waits for it starts its ranks now, or has failed.
  void answer(GroupId id, const Status& status);
  /// Its first rank is there. `name`: the group's, which may have a job now.
  void arrived(GroupId id, const std::string& name);
  /// Everybody who waits is told so.
  void close(const Status& why);

 private:
  struct Waiter {
    GroupId group = 0;
    Done done = {};  // null: it has been called
    SharedFd process = {};
    EventLoop::WatchId watch = 0;
    std::optional<EventLoop::TimerId> timer = {};
    Charge charge = {};
  };

  void end(Number number, const Status& status);
  void drop(Number number);
  void drop_if_unused(GroupId id);

  EventLoop& loop_;
  const std::function<void(const Start&)> gone_;
  std::map<GroupId, Start> starts_;
  std::map<Number, Waiter> waiters_;
  Number next_ = 1;
};

}  // namespace amem
