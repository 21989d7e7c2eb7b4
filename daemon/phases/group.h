// Group: the phases of one group of ranks, as a state machine that follows the table in phases.h.
//
// Events go in (a rank joins, leaves, answers; somebody asks for a pause; time passes), actions
// come out and are carried out by the caller, in order, before the next event. Every wait has a
// deadline. Before the point of no return (the first Release) a failure ends with the group running
// again; after it, with the group paused and its bytes safe; never in between.
//
// Pure: no I/O, time comes in, memory and sockets are the caller's business. Not synchronised: the
// broker's loop owns it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/phases/cut.h"
#include "daemon/phases/phase_times.h"
#include "daemon/phases/phases.h"
#include "daemon/phases/requests.h"
#include "daemon/phases/task.h"

namespace amem {

enum class GroupState : std::uint8_t { kRunning, kPausing, kPaused, kResuming };
std::string_view to_string(GroupState state);

/// What a rank's PhaseDone answers.
enum class Work : std::uint8_t { kSave, kRelease, kMap, kLoad, kOpen };

/// How an operation went.
struct Outcome {
  Task task = Operation::kPause;
  Status status;
  Duration total{};
  std::vector<PhaseTime> times;
};

/// What Group wants done. Those that say "answered by" expect that call once they have been done.
namespace action {

struct Quiesce {  // to these ranks
  Epoch epoch;
  std::vector<RankId> ranks;
};
struct Step {
  Epoch epoch;
  Cut::Step step;
};
struct Save {  // take extents, send Save to the keepers; answered by save_sent()
  Epoch epoch;
  bool again = false;  // for a further part: an earlier one has been dropped
};
struct Release {  // to these ranks what has been saved; `undo`: what this resume has brought back
  Epoch epoch;
  std::vector<RankId> ranks;
  bool undo = false;
};
struct Drop {};   // close the descriptors of what has been released; answered by dropped()
struct Admit {};  // compare need and free memory; answered by admitted()
struct Create {   // create what is not resident, send it to its keepers with Map and Load at once;
                  // answered by created(), unless the epoch has passed
  Epoch epoch;
};
struct Load {  // the last Map and Load to these ranks, which they answer
  Epoch epoch;
  std::vector<RankId> ranks;
};
struct Room {  // the swap's other group has left: create what waited for its memory
  Epoch epoch;
};
struct Open {  // to these ranks
  Epoch epoch;
  std::vector<RankId> ranks;
};
struct Arrived {  // what is in place needs no bytes in the pool any more
  bool loaded;    // also what this resume has brought back
  Selection what;
};
struct Answer {  // a rank's GroupRequest
  RankId rank;
  std::uint64_t seq;
  Status status;
};
struct Progress {
  Phase phase;
  std::uint32_t ranks_done;
  std::uint32_t ranks_total;
  std::uint64_t bytes;
  Duration elapsed;  // since the operation began
};
struct StateChanged {
  GroupState state;
};
struct Finished {
  Outcome outcome;
};

}  // namespace action

using Action = std::variant<action::Quiesce, action::Step, action::Save, action::Release,
                            action::Drop, action::Admit, action::Create, action::Load, action::Room,
                            action::Open, action::Arrived, action::Answer, action::Progress,
                            action::StateChanged, action::Finished>;

/// What a Group needs to know of its memory; its owner tells.
struct MemoryView {
  using Question = std::function<bool(const Selection&)>;
  /// Some of it is on a device and free to leave.
  Question can_leave = [](const Selection&) { return true; };
  /// Some of it is not on a device.
  Question away = [](const Selection&) { return false; };
};

class Group {
 public:
  Group(std::string name, const Deadlines& deadlines, Time now, MemoryView memory = {});

  /// The next thing to do; nothing when all has been done.
  std::optional<Action> next_action();
  /// When tick() is due; kNever: not at all.
  Time wakeup() const;
  void tick(Time now);

  // ---- ranks ----
  /// `label` names the rank in messages: "rank 3 (pid 123)". Returns whether it must start with its
  /// gate shut; then it gets Open with the others.
  bool join(RankId rank, std::string label);
  /// REQUIRES: it joined. `leaves_unloaded`: it was to load bytes of allocations that others hold.
  void leave(RankId rank, bool leaves_unloaded, Time now);
  /// Its session has ended while its process lives on: it stays a member that answers nothing,
  /// until leave(). REQUIRES: it joined.
  void lose(RankId rank, Time now);
  /// The rank was to load bytes that others hold too, and has let go of them.
  void freed_unloaded(RankId rank, Time now);
  /// Whether Create and Redeem of this rank are served now.
  bool may_allocate(RankId rank) const;
  /// A pause or resume asked for from inside. `timeout` 0: the configured one.
  void request(RankId rank, std::uint64_t seq, const Task& task, Duration timeout, Time now);

  // ---- an operator ----
  /// kFailedPrecondition: the group is in that state already, or in transition. `timeout`, when not
  /// 0, replaces the deadline of quiesce (pause) or map+load (resume).
  /// `held`: of a resume that is the second part of a swap; it must not open before go_on().
  Status start(const Task& task, Duration timeout, Time now, bool held = false);
  /// The swap's first group has been paused. REQUIRES: nothing; when no resume is held, nothing
  /// happens.
  void go_on(Time now);
  /// The swap's first group has not been paused: the resume that is held is rolled back.
  void give_up(const Status& why, Time now);
  /// Whether start() would be refused, and how.
  Status can_start(const Task& task) const;

  // ---- answers of ranks; those of another epoch or phase are ignored ----
  void cut_status(RankId rank, Epoch epoch, CutReport report, Time now);
  /// `spent`: how the rank spent its time, for the Outcome.
  void phase_done(RankId rank, Epoch epoch, Work work, const Status& status, std::uint64_t bytes,
                  Time now, const RankWork& spent = {});

  // ---- answers to actions ----
  /// `more`: that was a part of what is to be saved, and the next follows when it has been dropped.
  void save_sent(const Status& status, const std::vector<RankId>& ranks, Time now,
                 bool more = false);
  /// `note`: what an operator should know about it (memory that did not become free), or empty.
  void dropped(const std::string& note, Time now);
  void admitted(const Status& status, Time now);
  void created(const Status& status, Time now);

  // ---- for reports ----
  const std::string& name() const { return name_; }
  GroupState state() const { return state_; }
  Phase phase() const { return phase_; }
  Epoch epoch() const { return epoch_; }
  /// What is under way, or was last.
  const Task& task() const { return task_; }
  Time since() const { return since_; }
  const std::string& note() const { return note_; }
  std::vector<RankId> members() const;
  bool empty() const { return members_.empty(); }
  const std::string& label(RankId rank) const;
  /// The phase in which the broker waits for this rank now; empty: it does not.
  std::string_view waiting_for(RankId rank) const;
  /// The last one that succeeded; nothing before the first.
  const std::optional<Outcome>& last(Operation op) const {
    return op == Operation::kPause ? last_pause_ : last_resume_;
  }

 private:
  bool operating() const { return phase_ != Phase::kNone; }
  // Of the present phase. After the first Release no failure of a further Save calls anything off.
  OnFailure on_failure() const {
    return phase_ == Phase::kSave && released_ ? OnFailure::kGoOn : rule(phase_).failure;
  }
  OnDeath on_death() const {
    return phase_ == Phase::kSave && released_ ? OnDeath::kGoOn : rule(phase_).death;
  }
  bool gates_open() const;
  std::vector<RankId> participants() const;
  std::string names(const std::vector<RankId>& ranks) const;
  std::string laggards() const;

  /// The group is as the task would leave it.
  bool satisfied(const Task& task) const;
  void begin(const Task& task, Duration timeout, bool inside, bool held, Time now);
  void enter(Phase phase, Time now);
  void close_phase(Time now);
  void advance_if_done(Time now);
  void advance(Time now);
  void fail(const Status& status, Time now);
  void trouble(const Status& status);
  void settle(GroupState state, Status status, Time now);
  void look_at_cut(Time now);
  void look_at_requests(Time now);
  void answer(const Task& task, const Status& status);
  void expire_requests(const Task& task, Time now);
  Time request_deadline(const Task& task) const;
  void report_progress(Time now);
  void note_work(RankId rank, Work work, std::uint64_t bytes, const RankWork& spent, Time now);

  std::string name_;
  Deadlines deadlines_;
  MemoryView memory_;
  std::deque<Action> actions_;

  GroupState state_ = GroupState::kRunning;
  Time since_;
  Epoch epoch_ = 0;
  std::map<RankId, std::string> members_;  // → label
  Requests requests_;
  std::string note_;
  std::optional<Outcome> last_pause_;
  std::optional<Outcome> last_resume_;

  // The operation under way; meaningless while phase_ is kNone.
  Phase phase_ = Phase::kNone;
  Task task_ = Operation::kPause;
  GroupState rest_ = GroupState::kRunning;  // where it ends once the ranks have released
  bool inside_ = false;                     // begun by the ranks' own requests
  bool held_ = false;                       // not to open before go_on()
  bool loaded_ = false;                     // the ranks have everything that was to come back
  bool released_ = false;  // of a pause: the ranks were told to let go of something
  bool more_ = false;      // of a pause: a further part is to be saved
  Duration timeout_{};     // the operator's, 0: none
  Time began_;
  Time phase_began_;
  Time deadline_ = kNever;
  std::set<RankId> participants_;  // the ranks that were members when it began
  std::set<RankId> waiting_;       // of these, the ones whose answer to this phase is to come
  std::set<RankId> mapped_;        // in map+load: those that have answered Map
  std::uint32_t asked_ = 0;        // ranks that this phase was asked of
  std::uint64_t bytes_ = 0;        // that the ranks report for this phase
  std::optional<Cut> cut_;
  Status trouble_;  // the first thing that went wrong and did not end the operation at once
  std::vector<PhaseTime> times_;
  std::map<RankId, RankTime> rank_times_;  // of this phase
};

}  // namespace amem
