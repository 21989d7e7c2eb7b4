// Course: one pause or resume on its way through the table in phases.h.
//
// Events go in, actions come out, as of the Group that it belongs to. Every wait has a deadline.
// Before the point of no return (the first Release) a failure ends with the group running again;
// after it, with the group paused and its bytes safe; never in between.
//
// Pure: no I/O, time comes in. Not synchronised; one Group owns it, until it has ended.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/phases/actions.h"
#include "daemon/phases/cut.h"
#include "daemon/phases/phase_times.h"
#include "daemon/phases/phases.h"
#include "daemon/phases/task.h"

namespace amem {

/// The ranks of a group, and what they are called in messages.
class Members {
 public:
  /// `label` names the rank in messages: "rank 3 (pid 123)".
  void add(RankId rank, std::string label) { labels_.emplace(rank, std::move(label)); }
  void remove(RankId rank) { labels_.erase(rank); }
  /// Its process lives on without a session; from now on its label says so. REQUIRES: a member.
  void lose(RankId rank) { labels_.at(rank) += " whose session has ended (end that process)"; }

  bool empty() const { return labels_.empty(); }
  std::vector<RankId> ids() const;
  const std::string& label(RankId rank) const;
  /// Their labels, with commas.
  std::string names(const std::vector<RankId>& ranks) const;

 private:
  std::map<RankId, std::string> labels_;
};

/// An operation whose broker has ended, as the next one finds it.
struct Interrupted {
  Task task = Operation::kPause;
  OnRestart restart = OnRestart::kCallOff;
  std::string phase;    // in which it was, for people
  bool loaded = false;  // of kOpen: what a resume has brought back has its bytes
  bool failed = false;  // before: it ends with an error
};

class Course {
 public:
  /// The group's part.
  struct GroupContext {
    const Deadlines& deadlines;
    const Members& members;
    std::deque<Action>& actions;
    std::string& note;
  };
  struct Params {
    Task task;
    GroupState end_state;  // where it ends once the ranks have released
    GroupState before = GroupState::kRunning;
    Duration timeout{};   // not 0: instead of the deadline of quiesce (pause) or map+load (resume)
    bool inside = false;  // begun by the ranks' own requests
    Barrier barrier = Barrier::kNone;
    Phase begins = kPauseBegins;
    bool deep = false;  // nothing of the group's processes is on the devices
    std::optional<Interrupted> interrupted = {};  // of the same task: goes on with that
  };
  struct End {
    GroupState state;
    Status status;
  };

  Course(GroupContext group, Params params, Epoch epoch, Time now);

  // ---- events; REQUIRES: not ended ----
  void tell(Event event, Time now);
  void tick(Time now);
  /// The rank has become a member.
  void join(RankId rank);
  /// A member since before it began, with a session only now: is told what the others were.
  void come_back(RankId rank);
  /// `who`, a member until now. `leaves_unloaded`: it was to load bytes that others hold.
  void leave(RankId rank, const std::string& who, bool leaves_unloaded, Time now);
  /// Others go first: it is called off. REQUIRES: it waits for busy devices.
  void set_aside(Time now);
  /// `what` has happened: it stays a member that answers nothing.
  void lose(RankId rank, const std::string& what, Time now);

  // ---- how it stands ----
  const Params& params() const { return params_; }
  Phase phase() const { return phase_; }
  Epoch epoch() const { return epoch_; }
  bool gates_open() const;
  /// For a next broker, should this one end now.
  Interrupted interrupted() const;
  bool takes_part(RankId rank) const { return participants_.contains(rank); }
  /// The phase in which the broker waits for this rank now; empty: it does not.
  std::string_view waiting_for(RankId rank) const;
  Time wakeup() const;
  /// A process of the group may be locked or checkpointed, as far as the operation has got.
  bool deep() const { return deep_; }
  /// Nothing follows once it has ended.
  const std::optional<End>& end() const { return end_; }
  /// REQUIRES: it has ended; once.
  Outcome take_outcome(Time now);

 private:
  void on(event::CutStatus event, Time now);
  void on(const event::PhaseDone& event, Time now);
  void on(const event::Copied& event, Time now);
  void on(const event::FreedUnloaded& event, Time now);
  void on(const event::GuestsLeft& event, Time now) {
    done(PhaseEntry::kAwaitGuests, event.status, now);
  }
  void on(const event::SaveSent& event, Time now);
  void on(const event::Dropped& event, Time now);
  void on(const event::Checkpointed& event, Time now);
  void on(const event::Restored& event, Time now);
  void on(const event::Admitted& event, Time now) { done(PhaseEntry::kAdmit, event.status, now); }
  void on(const event::Created& event, Time now) { done(PhaseEntry::kCreate, event.status, now); }
  void on(const event::PermitOf& event, Time now);
  void on(const event::CutTaken& event, Time now);
  void on(const event::AllLeft& event, Time now);
  void on(const event::GoOn& event, Time now);
  void on(const event::GiveUp& event, Time now);

  void continue_from(const Interrupted& interrupted, Time now);
  void enter(Phase phase, Time now);
  void act(PhaseEntry entry, Time now);
  Duration limit(Phase phase) const;
  void close_phase(Time now);
  void advance_if_done(Time now);
  void advance(Time now);
  bool applies(Reason reason) const;
  /// A pause of a group that was paused before.
  bool was_paused() const {
    return params_.task.op == Operation::kPause && params_.before == GroupState::kPaused;
  }
  /// The broker has done what the phase began with.
  void done(PhaseEntry entry, const Status& status, Time now);
  void fail(const Status& status, Time now);
  void trouble(const Status& status);
  void finish(GroupState state, Status status, Time now);
  void look_at_cut(Time now);
  void note_work(const event::PhaseDone& event, Time now);
  void note_quiet(RankId rank, Time now);
  void report_progress(Time now);
  std::vector<RankId> participants() const;
  /// Also those that have joined on the way, with their gates shut.
  std::vector<RankId> shut() const;
  std::string laggards() const;

  GroupContext group_;
  Params params_;
  Epoch epoch_;
  Time began_;
  Phase phase_ = Phase::kNone;
  Time phase_began_;
  Time deadline_ = kNever;
  bool no_space_ = false;          // in save: the pool has none before zeros are looked for
  bool more_ = false;              // this is a wave, and not the last
  bool deep_;                      // see deep()
  bool loaded_ = false;            // the ranks have everything that the resume restores
  std::set<RankId> participants_;  // the ranks that were members when it began; of some: these
  std::set<RankId> waiting_;       // of these, the ones whose answer to this phase is to come
  std::set<RankId> mapped_;        // in map+load: those that have answered Map
  std::uint32_t asked_ = 0;        // ranks that this phase was asked of
  std::uint64_t bytes_ = 0;        // that they did in it
  std::uint64_t copied_ = 0;       // of these, between devices and pool
  std::map<RankId, event::Copied> under_way_;  // in this phase, of ranks that are copying
  Time tell_at_{};                             // no earlier report of them
  std::optional<Cut> cut_;                     // in quiesce
  Status trouble_;                             // what has gone wrong so far
  std::vector<PhaseTime> times_;
  std::map<RankId, RankTime> rank_times_;  // in this phase
  std::vector<PhaseSpan> spans_;
  std::vector<RankSpan> rank_spans_;  // in this phase
  std::optional<End> end_;
};

}  // namespace amem
