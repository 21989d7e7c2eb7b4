#include "daemon/phases/course.h"

#include <algorithm>
#include <utility>

#include "daemon/base/units.h"

namespace amem {
namespace {

/// The shortest time between two reports of ranks' copies to who watches an operation.
constexpr Duration kTellCopiesAgain = std::chrono::milliseconds(100);

}  // namespace

Course::Course(GroupContext group, Params params, Epoch epoch, Time now)
    : group_(group), params_(std::move(params)), epoch_(epoch), began_(now), deep_(params_.deep) {
  for (const RankId rank : group_.members.ids())
    if (params_.task.selection.of(rank)) participants_.insert(rank);
  if (params_.interrupted)
    continue_from(*params_.interrupted, now);
  else
    enter(params_.begins, now);
}

// ---- a restart of the broker --------------------------------------------------------------------

/// An operation that is not brought to its end is an error, to those who look for it.
void Course::continue_from(const Interrupted& interrupted, Time now) {
  if (interrupted.failed || interrupted.restart == OnRestart::kCallOff ||
      interrupted.restart == OnRestart::kRollBack)
    trouble_ = Status(Code::kAborted, "amemd ended during " + interrupted.phase +
                                          (interrupted.failed ? ", after a failure" : ""));
  loaded_ = interrupted.loaded;
  enter(first_phase(interrupted.restart), now);
}

Interrupted Course::interrupted() const {
  OnRestart restart = rule(phase_).restart;
  if (restart == OnRestart::kCallOff && was_paused()) restart = OnRestart::kRollBack;
  return {params_.task, restart, std::string(phase_name(phase_)), loaded_, !trouble_.ok()};
}

// ---- the way through the table ------------------------------------------------------------------

void Course::enter(Phase phase, Time now) {
  close_phase(now);
  const PhaseRule& begins = rule(phase);
  // By a fork an operation opens that has brought nothing back.
  if (begins.answer == RankPhase::kOpen && phase_ != Phase::kNone)
    loaded_ = rule(phase_).next == phase;
  phase_ = phase;
  phase_began_ = now;
  deadline_ = now + limit(phase);
  bytes_ = 0;
  copied_ = 0;
  under_way_.clear();
  waiting_.clear();
  mapped_.clear();
  cut_.reset();
  if (begins.counts == Counts::kWaves) ++epoch_.wave;
  if (begins.counts == Counts::kAttempts) epoch_ = epoch_.attempt + 1;
  if (begins.answer == RankPhase::kOpen) {
    const std::vector<RankId> all = shut();
    participants_.insert(all.begin(), all.end());
  }
  // In save the broker says first which ranks it asked.
  const bool asks = begins.waits_for_ranks() && begins.entry != PhaseEntry::kSave;
  if (asks) waiting_ = participants_;
  act(begins.entry, now);
  asked_ = static_cast<std::uint32_t>(waiting_.size());
  report_progress(now);
  // Last, because with this one the others may go on at once, and report it.
  if (begins.entry == PhaseEntry::kReady) group_.actions.push_back(action::Ready{});
  if (phase == kDeepeningBegins && trouble_.ok()) group_.actions.push_back(action::Left{});
  if (asks) advance_if_done(now);
}

void Course::act(PhaseEntry entry, Time now) {
  std::deque<Action>& actions = group_.actions;
  switch (entry) {
    case PhaseEntry::kAwaitGuests:
      return actions.push_back(action::AwaitGuests{});
    case PhaseEntry::kQuiesce:
      cut_.emplace(participants(), group_.deadlines.stall, now);
      return actions.push_back(action::Quiesce{epoch_, participants()});
    case PhaseEntry::kMeasure:
      return actions.push_back(action::Measure{epoch_, participants()});
    case PhaseEntry::kSave:
      no_space_ = false;
      more_ = false;  // until it is known what is left
      return actions.push_back(action::Save{epoch_});
    case PhaseEntry::kRelease: {
      const bool undo = phase_ == kRollbackBegins;
      if (undo && was_paused()) actions.push_back(action::Arrived{false, params_.task.selection});
      return actions.push_back(action::Release{epoch_, participants(), undo});
    }
    case PhaseEntry::kDrop:
      return actions.push_back(action::Drop{});
    case PhaseEntry::kCheckpoint:
      deep_ = true;  // as the record says before the first is locked
      return actions.push_back(action::Checkpoint{participants()});
    case PhaseEntry::kRestore:
      return actions.push_back(action::Restore{participants(), deadline_});
    case PhaseEntry::kAdmit:
      return actions.push_back(action::Admit{});
    case PhaseEntry::kCreate:
      return actions.push_back(action::Create{epoch_});
    case PhaseEntry::kLoad:
      return actions.push_back(action::Load{epoch_, participants()});
    case PhaseEntry::kAsk:
      return actions.push_back(action::Ask{epoch_, rule(phase_).answer, participants()});
    case PhaseEntry::kReady:
      return;  // enter() says so last
  }
}

Duration Course::limit(Phase phase) const {
  const auto of = [&](Phase each) {
    const bool by_timeout =
        rule(each).timeout == Timeout::kYes && params_.timeout != Duration::zero();
    return by_timeout ? params_.timeout : group_.deadlines.*rule(each).limit;
  };
  Duration limit = of(phase);
  const Awaited* const awaited = params_.barrier == Barrier::kNone ? nullptr : awaited_in(phase);
  if (awaited == nullptr) return limit;
  for (const Phase each : awaited->of_others)
    if (each != Phase::kNone) limit += of(each);
  return limit;
}

void Course::close_phase(Time now) {
  if (phase_ == Phase::kNone) return;
  add_time(times_, first_of_name(phase_), now - phase_began_, rank_times_);
  rank_times_.clear();
  spans_.push_back({phase_, phase_began_ - began_, now - began_, std::exchange(rank_spans_, {})});
}

void Course::advance_if_done(Time now) {
  if (cut_)
    look_at_cut(now);
  else if (waiting_.empty())
    advance(now);
}

void Course::advance(Time now) {
  // The two ends of an operation have no row in the table.
  switch (const Phase next = next_phase(phase_, [this](Reason r) { return applies(r); })) {
    case Phase::kRunning:
      group_.actions.push_back(action::Arrived{loaded_, params_.task.selection});
      return finish(GroupState::kRunning, trouble_, now);
    case Phase::kPaused:
      return finish(GroupState::kPaused, trouble_, now);
    default:
      return enter(next, now);
  }
}

bool Course::applies(Reason reason) const {
  switch (reason) {
    case Reason::kNoSpace:
      return no_space_;
    case Reason::kMoreToSave:
      return more_;
    case Reason::kDeep:
      return params_.task.op == Operation::kPause && params_.task.deep;
    case Reason::kRunsOn:
      return params_.end_state == GroupState::kRunning;
    case Reason::kBarrier:
      return params_.barrier != Barrier::kNone;
    case Reason::kWasPaused:
      return was_paused();
#ifdef AMEM_TEST_SEAMS
    case Reason::kTest:
      return test_phase();
#endif
  }
  return false;
}

void Course::trouble(const Status& status) {
  const std::string text = std::string(phase_name(phase_)) + ": " + status.text();
  if (trouble_.ok())
    trouble_ = Status(status.code(), text);
  else
    trouble_ = Status(trouble_.code(), trouble_.text() + "; then " + text);
}

void Course::fail(const Status& status, Time now) {
  trouble(status);
  OnFailure failure = rule(phase_).failure;
  // Its gates stay shut: its program must not run without what has left before.
  if (failure == OnFailure::kCallOff && was_paused()) failure = OnFailure::kRollBack;
  switch (failure) {
    case OnFailure::kCallOff:
      group_.actions.push_back(action::Arrived{false, params_.task.selection});
      group_.actions.push_back(action::Ask{epoch_, RankPhase::kOpen, shut()});
      return finish(GroupState::kRunning, trouble_, now);
    case OnFailure::kGoOn:
      return;
    case OnFailure::kStay:
      // Where processes may be locked, nothing is asked of them.
      if (!deep_)
        group_.actions.push_back(action::Ask{epoch_, RankPhase::kAllowFrees, participants()});
      return finish(GroupState::kPaused, trouble_, now);
    case OnFailure::kEnd: {
      const bool pause = params_.task.op == Operation::kPause;
      return finish(pause ? params_.before : params_.end_state, trouble_, now);
    }
    case OnFailure::kRollBack:
      if (rule(phase_).entry == PhaseEntry::kReady && params_.barrier != Barrier::kNone)
        group_.actions.push_back(action::Unready{});
      return enter(kRollbackBegins, now);
  }
}

void Course::finish(GroupState state, Status status, Time now) {
  close_phase(now);
  phase_ = Phase::kNone;
  cut_.reset();
  end_ = End{state, std::move(status)};
}

Outcome Course::take_outcome(Time now) {
  return {params_.task, end_->status, now - began_, std::move(times_), std::move(spans_)};
}

void Course::tell(Event event, Time now) {
  std::visit([&](auto& what) { on(std::move(what), now); }, event);
}

// ---- what ranks answer --------------------------------------------------------------------------

void Course::on(event::CutStatus event, Time now) {
  if (!cut_ || event.epoch != epoch_) return;
  const std::size_t quiet = cut_->quiet_ranks();
  if (params_.barrier == Barrier::kAcrossNodes)
    group_.actions.push_back(action::Reported{event.rank, event.report});
  cut_->report(event.rank, std::move(event.report), now);
  if (cut_->quiet_ranks() > quiet) note_quiet(event.rank, now);
  if (cut_->quiet_ranks() != quiet) report_progress(now);
  look_at_cut(now);
}

void Course::look_at_cut(Time now) {
  if (params_.barrier == Barrier::kAcrossNodes)
    return;  // what is quiet here may wait for another node
  if (cut_->taken()) {
    waiting_.clear();
    return advance(now);
  }
  for (const Cut::Permit& permit : cut_->decide(now))
    group_.actions.push_back(action::Permit{epoch_, permit});
}

void Course::on(const event::PhaseDone& event, Time now) {
  if (event.epoch != epoch_ || !waiting_.contains(event.rank)) return;
  const bool loading = rule(phase_).answer == RankPhase::kLoad;
  const bool first_answer = loading && event.phase == RankPhase::kMap;
  const bool last_answer =
      event.phase == rule(phase_).answer && (!loading || mapped_.contains(event.rank));
  if (!first_answer && !last_answer) return;

  if (!loading || first_answer) bytes_ += event.bytes;  // loaded is what was mapped
  if (event.phase == RankPhase::kSave || event.phase == RankPhase::kLoad) copied_ += event.bytes;
  under_way_.erase(event.rank);
  note_work(event, now);
  if (last_answer)
    waiting_.erase(event.rank);
  else
    mapped_.insert(event.rank);
  if (!event.status.ok()) {
    waiting_.erase(event.rank);
    const Phase failed_in = phase_;
    const Code code = event.status.code() == Code::kDataLoss ? Code::kDataLoss : Code::kAborted;
    fail({code, group_.members.label(event.rank) + " failed: " + event.status.text()}, now);
    if (phase_ != failed_in) return;  // the operation has gone another way
  }
  report_progress(now);
  if (last_answer || !event.status.ok()) advance_if_done(now);
}

void Course::on(const event::Copied& event, Time now) {
  if (event.epoch != epoch_ || !waiting_.contains(event.rank) || event.bytes > event.of) return;
  if (const RankPhase answer = rule(phase_).answer;
      answer != RankPhase::kSave && answer != RankPhase::kLoad)
    return;
  under_way_[event.rank] = event;
  // Many ranks tell, and a rank may tell as often as it likes.
  if (now < tell_at_) return;
  tell_at_ = now + kTellCopiesAgain;
  report_progress(now);
}

void Course::note_work(const event::PhaseDone& event, Time now) {
  RankTime& noted = rank_times_[event.rank];
  noted.rank = event.rank;
  noted.time = now - phase_began_;
  if (event.phase == RankPhase::kSave || event.phase == RankPhase::kLoad)
    noted.copied += event.bytes;
  noted.spent += event.spent;
  rank_spans_.push_back({event.rank, event.phase, now - began_, event.bytes, event.spent});
}

/// One that is not quiet any more, and then again, is shown as quiet from the last time on.
void Course::note_quiet(RankId rank, Time now) {
  std::erase_if(rank_spans_, [rank](const RankSpan& span) { return span.rank == rank; });
  CommandTimes spent;
  spent.busy = now - phase_began_;
  rank_spans_.push_back({rank, RankPhase::kQuiet, now - began_, 0, spent});
}

void Course::on(const event::FreedUnloaded& event, Time now) {
  const bool loading = rule(phase_).answer == RankPhase::kLoad && waiting_.contains(event.rank);
  if (rule(phase_).entry != PhaseEntry::kCreate && !loading) return;
  fail({Code::kAborted,
        group_.members.label(event.rank) +
            " freed memory that other ranks share before it had loaded it. Resume again"},
       now);
}

// ---- what the broker answers --------------------------------------------------------------------

void Course::on(const event::SaveSent& event, Time now) {
  if (rule(phase_).answer != RankPhase::kSave) return;
  if (!event.status.ok()) return fail(event.status, now);
  no_space_ = event.measure;
  if (no_space_) return advance(now);
  if (rule(phase_).counts != Counts::kWaves) group_.actions.push_back(action::Leaves{});
  more_ = event.more;
  waiting_ = {event.ranks.begin(), event.ranks.end()};
  asked_ = static_cast<std::uint32_t>(event.ranks.size());
  report_progress(now);
  advance_if_done(now);
}

void Course::on(const event::Dropped& event, Time now) {
  if (rule(phase_).entry == PhaseEntry::kDrop) {
    if (!event.note.empty()) group_.note = event.note;
    if (!event.stays.ok()) trouble(event.stays);
  }
  done(PhaseEntry::kDrop, {}, now);
}

void Course::on(const event::Checkpointed& event, Time now) {
  if (rule(phase_).entry != PhaseEntry::kCheckpoint) return;
  deep_ = event.deep;
  done(PhaseEntry::kCheckpoint, event.status, now);
}

void Course::on(const event::Restored& event, Time now) {
  if (rule(phase_).entry != PhaseEntry::kRestore) return;
  deep_ = !event.status.ok();
  done(PhaseEntry::kRestore, event.status, now);
}

void Course::done(PhaseEntry entry, const Status& status, Time now) {
  if (rule(phase_).entry != entry) return;
  if (!status.ok()) return fail(status, now);
  advance(now);
}

// ---- the others of its transaction --------------------------------------------------------------

void Course::on(const event::PermitOf& event, Time) {
  if (!cut_ || !takes_part(event.permit.rank)) return;
  cut_->sent(event.permit.rank);
  group_.actions.push_back(action::Permit{epoch_, event.permit});
}

void Course::on(const event::CutTaken&, Time now) {
  if (!cut_) return;
  waiting_.clear();
  advance(now);
}

void Course::on(const event::AllLeft&, Time) {
  if (rule(phase_).entry == PhaseEntry::kCreate) group_.actions.push_back(action::Vacated{epoch_});
}

void Course::on(const event::GoOn&, Time now) {
  if (std::exchange(params_.barrier, Barrier::kNone) == Barrier::kNone) return;
  if (rule(phase_).entry == PhaseEntry::kReady) advance(now);
}

void Course::on(const event::GiveUp& event, Time now) {
  if (std::exchange(params_.barrier, Barrier::kNone) == Barrier::kNone) return;
  // What rolls back already needs no second reason.
  if (rule(phase_).failure != OnFailure::kGoOn) fail(event.why, now);
}

// ---- ranks come and go --------------------------------------------------------------------------

bool Course::gates_open() const {
  // In open everything has been loaded. A group that runs goes on running while it waits for
  // guests, and while some of its memory returns.
  if (end_ || was_paused()) return false;
  return rule(phase_).gates == Gates::kOpen ||
         (params_.task.op == Operation::kResume && params_.end_state == GroupState::kRunning);
}

void Course::join(RankId rank) {
  // One that runs while memory returns may get hold of it, so it is in on what follows.
  if (gates_open() && params_.task.selection.of(rank)) participants_.insert(rank);
}

void Course::come_back(RankId rank) {
  if (!takes_part(rank)) return;
  switch (rule(phase_).comeback) {
    case OnComeback::kRelease:
      return group_.actions.push_back(action::Release{epoch_, {rank}, phase_ == kRollbackBegins});
    case OnComeback::kAsk:
      return group_.actions.push_back(action::Ask{epoch_, rule(phase_).answer, {rank}});
    case OnComeback::kNothing:
      return;
  }
}

void Course::leave(RankId rank, const std::string& who, bool leaves_unloaded, Time now) {
  const bool took_part = participants_.erase(rank) > 0;
  const bool was_awaited = waiting_.erase(rank) > 0;
  if (cut_ && params_.barrier == Barrier::kAcrossNodes)
    group_.actions.push_back(action::Reported{rank, std::nullopt});
  if (cut_) cut_->forget(rank);
  if (group_.members.empty()) {
    const bool pause = params_.task.op == Operation::kPause;
    return finish(pause ? GroupState::kPausing : GroupState::kResuming,
                  {Code::kAborted, "the last rank, " + who + ", has ended"}, now);
  }
  if (!took_part) return;
  const std::string what = who + " ended during " + std::string(phase_name(phase_));
  switch (rule(phase_).death) {
    case OnDeath::kCallOff:
      return fail({Code::kAborted, what}, now);
    case OnDeath::kRollBackIfNeeded:
      // While the broker creates, nobody has been asked for an answer yet.
      if (leaves_unloaded && (was_awaited || rule(phase_).entry == PhaseEntry::kCreate))
        return fail({Code::kAborted, what + " before it had loaded memory that other ranks share"},
                    now);
      [[fallthrough]];
    case OnDeath::kGoOn:
      group_.note = what;
      if (rule(phase_).waits_for_ranks()) advance_if_done(now);
  }
}

void Course::set_aside(Time now) {
  fail({Code::kDeadlineExceeded, "another operation goes first"}, now);
}

void Course::lose(RankId rank, const std::string& what, Time now) {
  if (takes_part(rank) && rule(phase_).death == OnDeath::kCallOff)
    fail({Code::kAborted, what + " during " + std::string(phase_name(phase_))}, now);
}

// ---- time ---------------------------------------------------------------------------------------

Time Course::wakeup() const {
  return cut_ && params_.barrier != Barrier::kAcrossNodes
             ? std::min(deadline_, cut_->next_decision())
             : deadline_;
}

void Course::tick(Time now) {
  if (now < deadline_) {
    if (cut_) look_at_cut(now);
    return;
  }
  if (rule(phase_).late == OnLate::kDecide) {  // the answer comes at once, and says what that means
    deadline_ = kNever;
    group_.actions.push_back(action::AwaitGuests{.late = true});
    return;
  }
  const Phase late = phase_;
  const Duration limit = deadline_ - phase_began_;
  fail({Code::kDeadlineExceeded, "not done within " + format_duration(limit) + ": " + laggards()},
       now);
  if (phase_ != late) return;
  waiting_.clear();  // goes on without their answers
  deadline_ = kNever;
  advance(now);
}

// ---- for people ---------------------------------------------------------------------------------

void Course::report_progress(Time now) {
  std::size_t done = asked_ - waiting_.size();
  if (cut_) done = cut_->quiet_ranks();
  action::Progress progress{phase_, static_cast<std::uint32_t>(done), asked_, bytes_, now - began_};
  for (const auto& [rank, copies] : under_way_) {
    if (!waiting_.contains(rank)) continue;  // it has gone
    progress.copied += copies.bytes;
    progress.to_copy += copies.of;
  }
  if (progress.to_copy > 0) {
    progress.copied += copied_;
    progress.to_copy += copied_;
  }
  group_.actions.push_back(progress);
}

std::string_view Course::waiting_for(RankId rank) const {
  return waiting_.contains(rank) ? phase_name(phase_) : std::string_view();
}

std::vector<RankId> Course::participants() const {
  return {participants_.begin(), participants_.end()};
}

std::vector<RankId> Course::shut() const {
  return params_.task.selection.local() ? participants() : group_.members.ids();
}

std::string Course::laggards() const {
  if (cut_) {
    std::string text;
    for (const auto& [rank, why] : cut_->laggards())
      text += (text.empty() ? "" : ", ") + group_.members.label(rank) + " " + why;
    return text.empty() ? "ranks of other nodes are not quiet yet" : text;
  }
  const bool across_nodes = params_.barrier == Barrier::kAcrossNodes;
  if (rule(phase_).entry == PhaseEntry::kReady)
    return std::string(across_nodes ? "other nodes " : "other groups ") +
           std::string(not_yet(phase_));
  if (waiting_.empty() && params_.barrier != Barrier::kNone)
    return "other groups of the swap or set still have the memory, or the broker still works";
  if (waiting_.empty() && rule(phase_).entry == PhaseEntry::kSave)
    return "amemd still prepares space in the pool";
  if (waiting_.empty()) return "the broker still works";
  return group_.members.names({waiting_.begin(), waiting_.end()}) + " did not answer";
}

std::vector<RankId> Members::ids() const {
  std::vector<RankId> ranks;
  for (const auto& [rank, label] : labels_) ranks.push_back(rank);
  return ranks;
}

const std::string& Members::label(RankId rank) const {
  static const std::string unknown = "an unknown rank";
  const auto it = labels_.find(rank);
  return it != labels_.end() ? it->second : unknown;
}

std::string Members::names(const std::vector<RankId>& ranks) const {
  std::string text;
  for (RankId rank : ranks) text += (text.empty() ? "" : ", ") + label(rank);
  return text;
}

}  // namespace amem
