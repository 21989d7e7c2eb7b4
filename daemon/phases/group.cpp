#include "daemon/phases/group.h"

#include <algorithm>
#include <utility>

#include "daemon/base/units.h"

namespace amem {

std::string_view to_string(GroupState state) {
  switch (state) {
    case GroupState::kRunning:
      return "running";
    case GroupState::kPausing:
      return "pausing";
    case GroupState::kPaused:
      return "paused";
    case GroupState::kResuming:
      return "resuming";
  }
  return "";
}

Group::Group(std::string name, const Deadlines& deadlines, Time now, MemoryView memory)
    : name_(std::move(name)), deadlines_(deadlines), memory_(std::move(memory)), since_(now) {}

std::optional<Action> Group::next_action() {
  if (actions_.empty()) return std::nullopt;
  Action next = std::move(actions_.front());
  actions_.pop_front();
  return next;
}

// ---- ranks --------------------------------------------------------------------------------------

bool Group::join(RankId rank, std::string label) {
  members_.emplace(rank, std::move(label));
  // One that runs while memory comes back may get hold of it, so it is in on what follows.
  if (operating() && gates_open()) participants_.insert(rank);
  return !gates_open();
}

bool Group::gates_open() const {
  // In the open phase everything has been loaded and Open has been sent. A group that runs goes on
  // running while some of its memory comes back.
  return state_ == GroupState::kRunning || phase_ == Phase::kOpen ||
         (state_ == GroupState::kResuming && rest_ == GroupState::kRunning);
}

void Group::leave(RankId rank, bool leaves_unloaded, Time now) {
  const std::string who = label(rank);
  const bool took_part = participants_.erase(rank) > 0;
  const bool was_awaited = waiting_.erase(rank) > 0;
  members_.erase(rank);
  requests_.forget(rank);
  if (cut_) cut_->forget(rank);

  if (operating() && members_.empty()) {
    settle(state_, {Code::kAborted, "the last rank, " + who + ", has ended"}, now);
    return;
  }
  if (operating() && took_part) {
    const std::string what = who + " ended during " + std::string(phase_name(phase_));
    switch (on_death()) {
      case OnDeath::kCallOff:
        fail({Code::kAborted, what}, now);
        break;
      case OnDeath::kRollBackIfNeeded:
        // While the broker creates, nobody has been asked for an answer yet.
        if (leaves_unloaded && (was_awaited || phase_ == Phase::kCreate)) {
          fail({Code::kAborted, what + " before it had loaded what other ranks hold too"}, now);
          break;
        }
        [[fallthrough]];
      case OnDeath::kGoOn:
        note_ = what;
        if (rule(phase_).waits_for_ranks) advance_if_done(now);
        break;
    }
  }
  look_at_requests(now);
}

void Group::lose(RankId rank, Time now) {
  std::string& label = members_.at(rank);
  const std::string what = label + " lost its session";
  label += " whose session has ended (end that process)";
  requests_.forget(rank);
  note_ = what + ", and its process ran on";
  if (operating() && participants_.contains(rank) && on_death() == OnDeath::kCallOff)
    fail({Code::kAborted, what + " during " + std::string(phase_name(phase_))}, now);
}

void Group::freed_unloaded(RankId rank, Time now) {
  const bool loading = phase_ == Phase::kLoad && waiting_.contains(rank);
  if (phase_ != Phase::kCreate && !loading) return;
  fail({Code::kAborted,
        label(rank) + " freed what other ranks hold too before it had loaded it; resume again"},
       now);
}

bool Group::may_allocate(RankId rank) const {
  // A call that passed the gate before it shut must be able to end; one that joined since has
  // passed nothing. In the open phase some gates are open before all ranks have answered.
  return gates_open() || (phase_ == Phase::kQuiesce && participants_.contains(rank));
}

std::vector<RankId> Group::members() const {
  std::vector<RankId> ranks;
  for (const auto& [rank, label] : members_) ranks.push_back(rank);
  return ranks;
}

std::vector<RankId> Group::participants() const {
  return {participants_.begin(), participants_.end()};
}

const std::string& Group::label(RankId rank) const {
  static const std::string unknown = "an unknown rank";
  const auto it = members_.find(rank);
  return it != members_.end() ? it->second : unknown;
}

std::string_view Group::waiting_for(RankId rank) const {
  return waiting_.contains(rank) ? phase_name(phase_) : std::string_view();
}

// ---- beginnings ---------------------------------------------------------------------------------

bool Group::satisfied(const Task& task) const {
  const Selection& what = task.selection;
  if (task.op == Operation::kResume) return state_ == GroupState::kRunning && !memory_.away(what);
  return state_ == GroupState::kPaused ||
         (state_ == GroupState::kRunning && !what.all() && !memory_.can_leave(what));
}

Status Group::can_start(const Task& task) const {
  if (operating())
    return {Code::kFailedPrecondition,
            "group '" + name_ + "' is " + std::string(to_string(state_)) + " (" +
                std::string(phase_name(phase_)) + "); try again when that has ended"};
  if (!satisfied(task)) return {};
  const std::string what = task.selection.all() ? "" : to_string(task.selection) + " of ";
  if (task.op == Operation::kPause && state_ == GroupState::kRunning &&
      !memory_.away(task.selection))
    return {Code::kFailedPrecondition,
            what + "group '" + name_ +
                "' cannot leave its devices: all of it is pinned, because a NIC may know where it "
                "is ('amemctl groups' says how much)"};
  return {Code::kFailedPrecondition,
          what + "group '" + name_ + "' is already " +
              std::string(task.op == Operation::kPause ? "paused" : "running")};
}

Status Group::start(const Task& task, Duration timeout, Time now, bool held) {
  Status status = can_start(task);
  if (status.ok()) begin(task, timeout, false, held, now);
  return status;
}

void Group::go_on(Time now) {
  if (!held_) return;
  held_ = false;
  if (phase_ == Phase::kCreate)
    actions_.push_back(action::Room{epoch_});
  else if (phase_ == Phase::kTurn)
    advance(now);
}

void Group::give_up(const Status& why, Time now) {
  if (!held_) return;
  held_ = false;
  // What rolls back already needs no second reason.
  if (rule(phase_).failure == OnFailure::kRollBack) fail(why, now);
}

void Group::begin(const Task& task, Duration timeout, bool inside, bool held, Time now) {
  const bool pause = task.op == Operation::kPause;
  task_ = task;
  rest_ = state_;
  if (pause && task.selection.all()) rest_ = GroupState::kPaused;
  inside_ = inside;
  held_ = held;
  loaded_ = false;
  released_ = false;
  more_ = false;
  timeout_ = timeout;
  began_ = now;
  trouble_ = {};
  note_.clear();
  times_.clear();
  participants_.clear();
  for (const auto& [rank, label] : members_) participants_.insert(rank);
  ++epoch_;
  state_ = pause ? GroupState::kPausing : GroupState::kResuming;
  since_ = now;
  actions_.push_back(action::StateChanged{state_});
  enter(pause ? Phase::kQuiesce : Phase::kAdmit, now);
}

// ---- phases -------------------------------------------------------------------------------------

void Group::enter(Phase phase, Time now) {
  close_phase(now);
  loaded_ = loaded_ || (rule(phase_).next == Phase::kOpen && phase == Phase::kOpen);
  phase_ = phase;
  phase_began_ = now;
  const bool theirs =
      timeout_ != Duration::zero() && (phase == Phase::kQuiesce || phase == Phase::kLoad);
  deadline_ = now + (theirs ? timeout_ : deadlines_.of(phase));
  // These may wait for all that the other group has still to do.
  if (held_ && (phase == Phase::kCreate || phase == Phase::kTurn))
    deadline_ += deadlines_.save + deadlines_.release + deadlines_.create;
  bytes_ = 0;
  waiting_.clear();
  mapped_.clear();
  if (phase != Phase::kQuiesce) cut_.reset();

  switch (phase) {
    case Phase::kQuiesce:
      waiting_ = participants_;
      cut_.emplace(participants(), deadlines_.stall, now);
      actions_.push_back(action::Quiesce{epoch_, participants()});
      break;
    case Phase::kSave:
      actions_.push_back(action::Save{epoch_, released_});
      break;
    case Phase::kRollback:
      ++epoch_;
      [[fallthrough]];
    case Phase::kRelease:
      released_ = true;
      waiting_ = participants_;
      actions_.push_back(action::Release{epoch_, participants(), phase == Phase::kRollback});
      break;
    case Phase::kDrop:
      actions_.push_back(action::Drop{});
      break;
    case Phase::kAdmit:
      actions_.push_back(action::Admit{});
      break;
    case Phase::kCreate:
      actions_.push_back(action::Create{epoch_});
      break;
    case Phase::kLoad:
      waiting_ = participants_;
      actions_.push_back(action::Load{epoch_, participants()});
      break;
    case Phase::kOpen: {
      // Those that joined on the way have their gates shut too.
      const std::vector<RankId> all = members();
      participants_.insert(all.begin(), all.end());
      waiting_ = participants_;
      actions_.push_back(action::Open{epoch_, all});
      break;
    }
    case Phase::kTurn:
    case Phase::kNone:
    case Phase::kPaused:
    case Phase::kRunning:
      break;
  }
  asked_ = static_cast<std::uint32_t>(waiting_.size());
  report_progress(now);
  // In save the broker says first whom it asked.
  if (rule(phase).waits_for_ranks && phase != Phase::kSave) advance_if_done(now);
}

void Group::close_phase(Time now) {
  if (!operating()) return;
  add_time(times_, phase_, now - phase_began_, rank_times_);
  rank_times_.clear();
}

void Group::note_work(RankId rank, Work work, std::uint64_t bytes, const RankWork& spent,
                      Time now) {
  RankTime& noted = rank_times_[rank];
  noted.rank = rank;
  noted.time = now - phase_began_;
  if (work == Work::kSave || work == Work::kLoad) noted.copied += bytes;
  noted.work += spent;
}

void Group::advance_if_done(Time now) {
  if (phase_ == Phase::kQuiesce)
    look_at_cut(now);
  else if (waiting_.empty())
    advance(now);
}

void Group::advance(Time now) {
  switch (const Phase next = rule(phase_).next) {
    case Phase::kPaused:
      if (std::exchange(more_, false)) {
        ++epoch_;  // a late answer of this part is none to the next
        return enter(Phase::kSave, now);
      }
      // Without chosen tags, or without those that could not come back, a group runs on.
      if (rest_ == GroupState::kRunning)
        enter(Phase::kOpen, now);
      else
        settle(rest_, trouble_, now);
      break;
    case Phase::kRunning:
      actions_.push_back(action::Arrived{loaded_, task_.selection});
      settle(GroupState::kRunning, trouble_, now);
      break;
    case Phase::kOpen:
      enter(held_ ? Phase::kTurn : Phase::kOpen, now);
      break;
    default:
      enter(next, now);
  }
}

void Group::trouble(const Status& status) {
  if (trouble_.ok())
    trouble_ = Status(status.code(), std::string(phase_name(phase_)) + ": " + status.text());
  else
    trouble_ = Status(trouble_.code(), trouble_.text() + "; then " +
                                           std::string(phase_name(phase_)) + ": " + status.text());
}

void Group::fail(const Status& status, Time now) {
  trouble(status);
  switch (on_failure()) {
    case OnFailure::kCallOff:
      actions_.push_back(action::Arrived{false, task_.selection});
      actions_.push_back(action::Open{epoch_, members()});
      settle(GroupState::kRunning, trouble_, now);
      break;
    case OnFailure::kGoOn:
      break;
    case OnFailure::kEnd:
      settle(rest_, trouble_, now);
      break;
    case OnFailure::kRollBack:
      enter(Phase::kRollback, now);
      break;
  }
}

void Group::settle(GroupState state, Status status, Time now) {
  close_phase(now);
  phase_ = Phase::kNone;
  held_ = false;
  deadline_ = kNever;
  waiting_.clear();
  participants_.clear();
  cut_.reset();
  state_ = state;
  since_ = now;
  if (!status.ok()) {
    std::string text = describe(task_, name_) + ": " + status.text();
    if (!members_.empty()) text += "; the group is " + std::string(to_string(state_));
    status = Status(status.code(), std::move(text));
    note_ = status.text();
  }
  Outcome outcome{task_, status, now - began_, std::move(times_)};
  times_.clear();
  if (status.ok()) (task_.op == Operation::kPause ? last_pause_ : last_resume_) = outcome;
  if (!members_.empty()) actions_.push_back(action::StateChanged{state_});
  actions_.push_back(action::Finished{std::move(outcome)});

  if (inside_ || satisfied(task_)) answer(task_, status);
  look_at_requests(now);
}

void Group::report_progress(Time now) {
  std::size_t done = asked_ - waiting_.size();
  if (phase_ == Phase::kQuiesce && cut_) done = cut_->quiet_ranks();
  actions_.push_back(
      action::Progress{phase_, static_cast<std::uint32_t>(done), asked_, bytes_, now - began_});
}

// ---- time ---------------------------------------------------------------------------------------

Time Group::wakeup() const {
  Time time = deadline_;
  if (cut_) time = std::min(time, cut_->next_decision());
  for (const Task& task : requests_.tasks()) time = std::min(time, request_deadline(task));
  return time;
}

void Group::tick(Time now) {
  for (const Task& task : requests_.tasks()) expire_requests(task, now);
  if (!operating()) return;
  if (now < deadline_) {
    if (phase_ == Phase::kQuiesce) look_at_cut(now);
    return;
  }
  const Phase late = phase_;
  const Epoch epoch = epoch_;
  const Duration limit = deadline_ - phase_began_;
  fail({Code::kDeadlineExceeded, "not done within " + format_duration(limit) + ": " + laggards()},
       now);
  // Another operation may have begun at once, in the same phase.
  if (phase_ != late || epoch_ != epoch) return;
  waiting_.clear();  // goes on without their answers
  deadline_ = kNever;
  if (rule(phase_).waits_for_ranks) advance(now);
}

std::string Group::names(const std::vector<RankId>& ranks) const {
  std::string text;
  for (RankId rank : ranks) text += (text.empty() ? "" : ", ") + label(rank);
  return text;
}

std::string Group::laggards() const {
  if (cut_) {
    std::string text;
    for (const auto& [rank, why] : cut_->laggards())
      text += (text.empty() ? "" : ", ") + label(rank) + " " + why;
    return text;
  }
  if (waiting_.empty() && held_) return "the group that is to go out still has its memory";
  if (waiting_.empty()) return "the broker's own work";
  return names({waiting_.begin(), waiting_.end()}) + " did not answer";
}

}  // namespace amem
