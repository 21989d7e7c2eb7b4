// ElasticPool: when the host pool gets larger than its reserve, and smaller again.
//
// A pause that an operator or a stage asks for waits here before its gates shut, so that the job
// runs on while memory is pinned for it: as much as it has to save at most. One segment is made at
// a time, for the first who waits, and each that comes is looked at anew. So whoever stops waiting
// ends the growth, and what has come goes back after pool.idle, as everything that nothing needs.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/operations/group_operation.h"
#include "daemon/operations/running_command.h"
#include "daemon/owners/account.h"

namespace amem {

class ElasticPool {
 public:
  using Observer = RunningCommand::Observer;
  using Groups = std::vector<NamedGroup>;

  /// `context` outlives this object.
  explicit ElasticPool(const OperationContext& context)
      : node_(context.node), outbox_(context.outbox), saved_(context.saved), loop_(context.loop) {}
  ~ElasticPool();
  ElasticPool(const ElasticPool&) = delete;
  ElasticPool& operator=(const ElasticPool&) = delete;

  /// What prepare() has done.
  struct Prepared {
    std::uint64_t pinned = 0;  // bytes
    Duration took{};
    std::uint64_t needed = 0;     // at most, by a pause
    std::uint64_t available = 0;  // of that, bytes that the pool has space for
  };
  using Done = std::function<void(const Status&, const Prepared&)>;
  /// Pins what a pause of these groups needs at most, and calls `done`. Returns what ends the wait.
  /// `timeout` 0: no limit.
  std::function<void()> prepare(const Groups& groups, Duration timeout, const Done& done);
  /// These are likely to be paused next: what that needs is pinned, and stays.
  void foresee(const Groups& groups);
  /// True: the pool may get larger for what goes out by this order, and `go_on` is called when it
  /// has. It gets the observer that watches from then on. If it cannot, the observer is told
  /// why, and that is all.
  bool await(const Order& order, const Observer& observer,
             std::function<void(const Observer&)> go_on);
  /// A segment of so many bytes has come for who waits.
  void came(std::uint64_t bytes);
  /// Some segment has come: the pool's thread goes on.
  void goes_on();
  /// It cannot be made.
  void refused(const Status& why);
  /// Gives back what nothing has needed for pool.idle, at once and from then on.
  void look_at_idle();
  /// The rank has unmapped what it was asked to by this number, or has kept it.
  void unmapped(RankId rank, std::uint64_t number, bool gone);
  /// The rank has ended, and answers nothing any more.
  void gone(RankId rank);
  /// Nobody waits any more. Returns who did.
  std::vector<Observer> dismiss();

 private:
  struct Wait {
    std::uint64_t number = 0;
    Groups groups;
    Task pause;
    Parts parts;
    std::function<void(std::uint64_t pinned, Duration took)> served;
    std::function<void(const Status& why)> refused;
    Observer observer = nullptr;  // of a pause
    Time began = Clock::now();
    std::uint64_t pinned = 0;  // bytes, for this
    // Ranks that have not said that they have mapped all of it; nothing: they have not been asked.
    std::optional<std::set<RankId>> maps = {};
  };
  /// A segment that an owner's ranks are asked for.
  struct Leaving {
    std::shared_ptr<Account> account;
    std::uint32_t segment = 0;
    std::set<RankId> ranks;  // that have not answered
    EventLoop::TimerId deadline;
  };
  using Needs = std::map<std::shared_ptr<Account>, std::uint64_t>;

  /// Returns how many bytes these save at most, by owner.
  Needs needs_of(const Groups& groups, const Task& pause, const Parts& parts) const;
  /// Returns how much of that is missing and can be made.
  std::uint64_t missing(const Needs& needs) const;
  /// Gives those who wait what there is, lets those go on who lack nothing, and asks for more.
  void serve();
  void forget(std::uint64_t wait, const Status& why);
  void add(Wait wait);
  /// Asks the ranks whether they have mapped what they were sent. True: some of them are to answer.
  bool await_maps(Wait& wait);
  /// The rank can be asked to unmap segments, and answers.
  bool answers(const Rank& rank) const;
  /// Asks for a segment of an owner that has needed none since. Returns when to look again.
  Time withdraw(const std::shared_ptr<Account>& account, Time before);
  /// Returns all its ranks that can be asked; nothing: a process of its may have segments and
  /// cannot be asked, or an operation is under way.
  std::optional<std::set<RankId>> askable(const std::shared_ptr<Account>& account) const;
  /// All ranks have unmapped it, or it stays.
  void end(std::uint64_t number, bool gone);

  Node& node_;
  Outbox& outbox_;
  SavedBytes& saved_;
  EventLoop& loop_;
  std::list<Wait> waits_;                     // in the order in which they came
  std::uint64_t asked_ = 0;                   // the wait that has asked for the last segment
  std::map<std::uint64_t, Leaving> leaving_;  // one of each owner, by number
  std::uint64_t last_number_ = 0;
  std::uint64_t foreseen_ = 0;  // a wait, which need not be there any more
  Time foresees_again_{};       // the host had too little
  std::optional<EventLoop::TimerId> timer_;
  std::optional<EventLoop::TimerId> stall_;  // for the next segment, while somebody waits
  CallbackScope scope_;
};

}  // namespace amem
