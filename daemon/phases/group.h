// Group: the ranks that pause and resume together, what they ask for, and where they stand. What is
// under way is a Course.
//
// Events go in (a rank joins, leaves, answers; somebody asks for a pause; time passes), actions
// come out and are carried out by the caller, in order, before the next event.
//
// Pure: no I/O, time comes in, memory and sockets are the caller's business. Not synchronised: the
// broker's loop owns it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/phases/actions.h"
#include "daemon/phases/course.h"
#include "daemon/phases/phases.h"
#include "daemon/phases/requests.h"
#include "daemon/phases/task.h"

namespace amem {

/// What a Group needs to know of its memory; its owner tells.
struct MemoryView {
  using Question = std::function<bool(const Selection&)>;
  /// Some of it is on a device and free to leave.
  Question can_leave = [](const Selection&) { return true; };
  /// Some of it is not on a device.
  Question paused = [](const Selection&) { return false; };
  /// Ranks of other groups have open some memory that would leave.
  Question opened = [](const Selection&) { return false; };
  /// Whether some of a paused group's memory is on a device and free to leave.
  Question has_remainder = [](const Selection&) { return false; };
  /// The ranks that share some of what the selection takes with this rank; with it or without.
  std::function<std::set<RankId>(RankId, const Selection&)> sharers = [](RankId, const Selection&) {
    return std::set<RankId>();
  };
  /// An operation of the group waits for the end of what some ranks have asked for (local()).
  std::function<bool()> awaited = [] { return false; };
};

/// What the next broker must know of a group.
struct RestartState {
  GroupState stable_state = GroupState::kRunning;  // where it is, or was before what is under way
  Epoch epoch;                                     // the last
  std::optional<Interrupted> under_way;            // what the next broker goes on with
  bool by_operator = false;  // an operator has paused all of it, or is about to
  bool deep = false;         // Group::deep()
  std::string lost;          // Group::lost()
  std::uint32_t losses = 0;  // how many ranks it means
};

class Group {
 public:
  Group(std::string name, const Deadlines& deadlines, Time now, MemoryView memory = {});
  /// A group as another broker has left it, with these members. None has reconnected yet. What that
  /// broker had begun goes on once all have, or `patience` is over.
  Group(std::string name, const Deadlines& deadlines, Time now, MemoryView memory,
        const RestartState& restart_state, Members members, Duration patience);
  Group(const Group&) = delete;

  /// The next thing to do; nothing when all has been done.
  std::optional<Action> next_action();
  /// When tick() is due; kNever: not at all.
  Time wakeup() const;
  void tick(Time now);

  // ---- ranks ----
  /// `label` names the rank in messages: "rank 3 (pid 123)". Returns whether it must start with its
  /// gate shut; then it gets Open with the others. A member that is expected has reconnected.
  bool join(RankId rank, std::string label);
  /// REQUIRES: it joined. `leaves_unloaded`: it was to load bytes of allocations that others hold.
  void leave(RankId rank, bool leaves_unloaded, Time now);
  /// Its session has ended while its process lives on: it stays a member that answers nothing,
  /// until leave(). REQUIRES: it joined.
  void lose(RankId rank, Time now);
  /// Its session has ended while its process lives on and may be checkpointed: it stays a member,
  /// and may reconnect, as after a restart of the broker. REQUIRES: it joined; deep().
  void expect(RankId rank);
  /// Whether Create and Redeem of this rank are served now.
  bool may_allocate(RankId rank) const;
  /// Returns whether the operation under way is of other ranks.
  bool aside(RankId rank) const;
  /// Returns whether all that a resume restores is there, and some ranks may run already: also
  /// where the broker's end has interrupted that.
  bool opens() const {
    return phase() == Phase::kOpen || (interrupted_ && interrupted_->restart == OnRestart::kOpen);
  }
  /// A pause or resume asked for from inside. `timeout` 0: the configured one. While the group runs
  /// one of tags is of this rank and of those that must ask with it (Requests::units): others run
  /// on. Any other is of all ranks. A resume of some tags waits while an operator has all of it
  /// paused: it would set the group running without the rest. `together`: it is one with these.
  void request(RankId rank, std::uint64_t seq, const Task& task, Duration timeout, Time now,
               const RankSet& together = {});
  /// Nobody waits for that any more: kCancelled, if it has not begun.
  void withdraw(RankId rank, std::uint64_t seq, Time now);

  // ---- an operation ----
  /// kFailedPrecondition: the group is in that state already, or in transition. `timeout`, when not
  /// 0, replaces the deadline of quiesce (pause) or map+load (resume).
  Status start(const Task& task, Duration timeout, Time now, Barrier barrier = Barrier::kNone);
  /// Whether start() would be refused, and how.
  Status can_start(const Task& task) const;
  void tell(Event event, Time now);
  /// Returns whether the operation under way is of some ranks, which have asked for it.
  bool local() const;
  /// If such an operation still waits for its devices, it ends, and begins again after what is
  /// next.
  void set_aside(Time now);

  // ---- for reports ----
  const std::string& name() const { return name_; }
  /// REQUIRES: it has no ranks yet.
  void rename(std::string name) { name_ = std::move(name); }
  const Members& members() const { return members_; }
  GroupState state() const { return state_; }
  /// A process of it may be locked or checkpointed: nothing of it can work on memory before a
  /// resume.
  bool deep() const { return course_ ? course_->deep() : deep_; }
  /// A pause or resume: also one that the broker's end has interrupted, and one of some ranks,
  /// while the group runs.
  bool under_way() const { return course_ || interrupted_; }
  /// That as a clause of a sentence. Empty: nothing is under way.
  std::string what_is_under_way() const;
  /// Returns the members that may reconnect and have not, for people. Nothing can begin without
  /// them.
  std::string missing() const {
    return expected_.empty() ? std::string() : members_.names({expected_.begin(), expected_.end()});
  }
  Phase phase() const { return course_ ? course_->phase() : Phase::kNone; }
  Epoch epoch() const { return course_ ? course_->epoch() : epoch_; }
  Time since() const { return since_; }
  /// How the last operation failed, and which ranks were lost while it was paused.
  std::string note() const { return note_ + (note_.empty() || lost_.empty() ? "" : "; ") + lost_; }
  /// Returns which ranks were lost while it was paused, until as many have joined. A router must
  /// not send requests to such a group.
  const std::string& lost() const { return lost_; }
  /// Returns the phase in which the broker waits for this rank now; "comeback": it has no session
  /// and may reconnect; empty: the broker does not wait for it.
  std::string_view waiting_for(RankId rank) const;
  /// The last one that succeeded; nothing before the first.
  const std::optional<Outcome>& last(Operation op) const {
    return op == Operation::kPause ? last_pause_ : last_resume_;
  }

 private:
  friend RestartState restart_state_of(const Group& group);
  /// Returns whether the gates are open of the ranks that take part in what is under way.
  bool gates_open() const {
    if (course_) return course_->gates_open();
    // Memory that was returning to a group that runs goes away again; the group runs.
    if (interrupted_)
      return interrupted_->task.op == Operation::kResume && stable_state_ == GroupState::kRunning;
    return state_ == GroupState::kRunning;
  }
  bool was_paused() const { return (course_ ? stable_state_ : state_) == GroupState::kPaused; }
  GroupState end_state_of(const Task& task) const {
    return task.stops() ? GroupState::kPaused : stable_state_;
  }
  void go_on_if_all_are_back(Time now);
  /// The group is as the task would leave it.
  bool satisfied(const Task& task) const;
  /// Returns whether it is paused, except for memory that the task would take.
  bool has_remainder(const Task& task) const;
  void begin(const Task& task, Duration timeout, bool inside, Barrier barrier, Time now);
  void conclude_if_ended(Time now);
  /// REQUIRES: what is under way has ended.
  void conclude(Time now);
  void look_at_requests(Time now);
  bool waits_for_operator(const Task& task) const;
  /// It is of the ranks that ask for it, and of no others.
  bool is_local(const Task& task) const;
  /// Returns the units of the ranks that wait for it.
  std::vector<RankUnit> units(const Task& task) const;
  /// Begins what complete units wait for. True: something has begun.
  bool begin_local(const Task& task, Time now);
  void answer(const std::vector<Requests::Request>& requests, const Status& status);
  /// `again`: it was called off because devices were busy.
  void answer_local(const Task& task, const Status& status, bool again, Time now);
  void answer_withdrawn(const Task& task);
  /// Returns whether the operation under way does what the rank has asked for.
  bool under_way(const Task& task, RankId rank) const;
  std::string what_it_waits_for(const Task& task, const RankUnit& unit) const;
  void tell_waits(Time now);
  Time request_deadline(const Task& task) const;
  void expire_requests(const Task& task, Time now);
  /// Returns when it is made deep; kNever: not as it is now.
  Time deepens_at() const;

  std::string name_;
  const Deadlines deadlines_;
  const MemoryView memory_;
  std::deque<Action> actions_;

  GroupState state_ = GroupState::kRunning;
  GroupState stable_state_ = GroupState::kRunning;  // before what is under way
  bool deep_ = false;
  bool by_operator_ = false;  // an operator has paused all of it, or is about to
  Time since_;
  Epoch epoch_;  // the last one
  Members members_;
  Requests requests_;
  std::string note_;
  std::string lost_;
  std::uint32_t losses_ = 0;
  std::set<RankId> late_;  // joined while it was paused, so a pause has taken nothing of theirs
  std::optional<Outcome> last_pause_;
  std::optional<Outcome> last_resume_;
  std::optional<Course> course_;            // the operation under way
  std::set<RankId> expected_;               // members without a session that may reconnect
  std::optional<Interrupted> interrupted_;  // waits for them
  Time patience_ = kNever;
  Time overdue_;  // the last action::Overdue
};

RestartState restart_state_of(const Group& group);
/// A pause that is under way, or that the broker's end has interrupted, takes memory of this tag
/// that these ranks share for certain: its first Release has been sent.
bool will_take(const Group& group, const std::string& tag, const std::vector<RankId>& sharers = {});

}  // namespace amem
