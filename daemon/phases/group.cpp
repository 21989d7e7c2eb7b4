#include "daemon/phases/group.h"

#include <algorithm>
#include <utility>

namespace amem {
namespace {

/// Ranks that ask for some of their memory may wait for others for long, as in a collective.
constexpr Duration kTellWaits = std::chrono::seconds(30);
/// So many ranks that are lost while the group is paused are named.
constexpr std::uint32_t kLossesNamed = 4;
/// How long the devices of one pause of tags may keep others of the group from having theirs.
constexpr Duration kBusyTurn = std::chrono::seconds(1);

}  // namespace

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

Group::Group(std::string name, const Deadlines& deadlines, Time now, MemoryView memory,
             const RestartState& restart_state, Members members, Duration patience)
    : Group(std::move(name), deadlines, now, std::move(memory)) {
  state_ = stable_state_ = restart_state.stable_state;
  by_operator_ = restart_state.by_operator;
  deep_ = restart_state.deep;
  lost_ = restart_state.lost;
  losses_ = restart_state.losses;
  epoch_ = restart_state.epoch;
  members_ = std::move(members);
  for (const RankId rank : members_.ids()) expected_.insert(rank);
  if (!restart_state.under_way) return;
  note_ = "amemd ended during " + restart_state.under_way->phase + " and has restarted";
  if (restart_state.under_way->restart == OnRestart::kStay) {
    state_ = stable_state_ = GroupState::kPaused;
    return;
  }
  interrupted_ = restart_state.under_way;
  patience_ = now + patience;
  const bool pause = interrupted_->task.op == Operation::kPause;
  if (interrupted_->task.selection.local()) return;
  state_ = pause ? GroupState::kPausing : GroupState::kResuming;
}

std::optional<Action> Group::next_action() {
  if (actions_.empty()) return std::nullopt;
  Action next = std::move(actions_.front());
  actions_.pop_front();
  return next;
}

// ---- ranks --------------------------------------------------------------------------------------

bool Group::join(RankId rank, std::string label) {
  if (expected_.erase(rank) > 0) {
    if (interrupted_ && expected_.empty()) patience_ = {};
    if (course_) course_->come_back(rank);  // it has begun without it
    return !gates_open() && !aside(rank);
  }
  members_.add(rank, std::move(label));
  if (losses_ > 0 && --losses_ == 0) lost_.clear();
  if (was_paused()) late_.insert(rank);
  if (course_) course_->join(rank);
  return !gates_open() && !aside(rank);
}

void Group::leave(RankId rank, bool leaves_unloaded, Time now) {
  const std::string who = members_.label(rank);
  members_.remove(rank);
  requests_.forget(rank);
  if (expected_.erase(rank) > 0 && interrupted_ && expected_.empty()) patience_ = {};
  if (interrupted_ && members_.empty()) {  // nobody is left to go on with it
    interrupted_.reset();
    patience_ = kNever;
    state_ = stable_state_;
  }
  // What an operation under way loses, its own error says.
  if (!course_ && was_paused() && late_.erase(rank) == 0) {
    if (++losses_ <= kLossesNamed)
      lost_ += (lost_.empty() ? "lost " : "; lost ") + who + " while it was paused";
    else if (losses_ == kLossesNamed + 1)
      lost_ += "; and more";
  }
  if (course_) course_->leave(rank, who, leaves_unloaded, now);
  conclude_if_ended(now);
  go_on_if_all_are_back(now);
  look_at_requests(now);
}

void Group::lose(RankId rank, Time now) {
  const std::string what = members_.label(rank) + " lost its session";
  members_.lose(rank);
  requests_.forget(rank);
  note_ = what + ", and its process continues to run";
  if (course_) course_->lose(rank, what, now);
  conclude_if_ended(now);
}

void Group::expect(RankId rank) {
  note_ = members_.label(rank) + " lost its session while its process may be checkpointed";
  requests_.forget(rank);
  expected_.insert(rank);
}

void Group::go_on_if_all_are_back(Time now) {
  if (!interrupted_ || members_.empty() || now < patience_) return;
  const Interrupted what = *std::exchange(interrupted_, std::nullopt);
  patience_ = kNever;
  actions_.push_back(action::Begun{.task = what.task, .continues = true});
  epoch_ = epoch_.attempt + 1;
  course_.emplace(Course::GroupContext{deadlines_, members_, actions_, note_},
                  Course::Params{.task = what.task,
                                 .end_state = end_state_of(what.task),
                                 .before = stable_state_,
                                 .deep = deep_,
                                 .interrupted = what},
                  epoch_, now);
}

RestartState restart_state_of(const Group& group) {
  const bool stable = !group.course_ && !group.interrupted_;
  return {stable ? group.state_ : group.stable_state_,
          group.epoch(),
          group.course_ ? group.course_->interrupted() : group.interrupted_,
          group.by_operator_,
          group.deep(),
          group.lost_,
          group.losses_};
}

bool will_take(const Group& group, const std::string& tag, const std::vector<RankId>& sharers) {
  const auto what = restart_state_of(group).under_way;
  return what && what->restart == OnRestart::kRelease && what->task.selection.takes(tag, sharers);
}

bool Group::aside(RankId rank) const {
  const Task* const task = course_        ? &course_->params().task
                           : interrupted_ ? &interrupted_->task
                                          : nullptr;
  return task != nullptr && !task->selection.of(rank);
}

bool Group::may_allocate(RankId rank) const {
  // A call that passed the gate before it shut must be able to end; one that joined since has
  // passed nothing. In the open phase some gates are open before all ranks have answered.
  // What a restart calls off has gates that are open still.
  return gates_open() || opens() || aside(rank) ||
         (course_ && rule(phase()).answer == RankPhase::kQuiet && course_->takes_part(rank)) ||
         (interrupted_ && interrupted_->restart == OnRestart::kCallOff);
}

std::string_view Group::waiting_for(RankId rank) const {
  if (expected_.contains(rank)) return "comeback";
  return course_ ? course_->waiting_for(rank) : std::string_view();
}

// ---- operations ---------------------------------------------------------------------------------

bool Group::satisfied(const Task& task) const {
  const Selection& what = task.selection;
  if (task.op == Operation::kResume) return state_ == GroupState::kRunning && !memory_.paused(what);
  if (what.all() && task.deep) return state_ == GroupState::kPaused && deep_;
  return state_ == GroupState::kPaused ||
         (state_ == GroupState::kRunning && !what.all() && !memory_.can_leave(what));
}

bool Group::has_remainder(const Task& task) const {
  return task.op == Operation::kPause && task.selection.all() && state_ == GroupState::kPaused &&
         memory_.has_remainder(task.selection);
}

Status Group::can_start(const Task& task) const {
  if (course_)
    return {Code::kFailedPrecondition, what_is_under_way() + ". Try again when that has ended"};
  // A restore needs only the processes. The phase after it waits for the ranks.
  const bool restores = deep_ && task.op == Operation::kResume;
  if (interrupted_ || (!expected_.empty() && !restores))
    return {Code::kUnavailable, "group '" + name_ + "' is incomplete: it waits for " +
                                    members_.names({expected_.begin(), expected_.end()}) +
                                    " to reconnect. Try again, or end that process"};
  if (!satisfied(task) || has_remainder(task)) return {};
  const std::string what = task.selection.all() ? "" : to_string(task.selection) + " of ";
  if (task.op == Operation::kPause && state_ == GroupState::kRunning &&
      !memory_.paused(task.selection))
    return {Code::kFailedPrecondition,
            what + "group '" + name_ +
                "' cannot leave its devices: all of its memory is pinned, because it may be "
                "registered with a NIC (`amemctl groups` says how much)"};
  return {Code::kFailedPrecondition,
          what + "group '" + name_ + "' is already " +
              std::string(task.op == Operation::kResume ? "running"
                          : task.deep                   ? "paused, with nothing left on its devices"
                                                        : "paused")};
}

Status Group::start(const Task& task, Duration timeout, Time now, Barrier barrier) {
  Status status = can_start(task);
  if (status.ok()) begin(task, timeout, false, barrier, now);
  return status;
}

void Group::begin(const Task& task, Duration timeout, bool inside, Barrier barrier, Time now) {
  const bool pause = task.op == Operation::kPause;
  // Who makes a paused group deep has not paused it.
  const bool deepens = pause && state_ == GroupState::kPaused && !has_remainder(task);
  if (task.stops() && !deepens) by_operator_ = !inside;
  stable_state_ = state_;
  const GroupState end_state = end_state_of(task);
  note_.clear();
  if (task.op == Operation::kResume) late_.clear();
  actions_.push_back(action::Begun{task, deepens});
  if (!task.selection.local()) {  // else the group runs
    state_ = pause ? GroupState::kPausing : GroupState::kResuming;
    since_ = now;
    actions_.push_back(action::StateChanged{state_});
  }
  epoch_ = epoch_.attempt + 1;
  Phase begins = deep_ ? kDeepResumeBegins : kResumeBegins;
  if (deepens)
    begins = kDeepeningBegins;
  else if (pause)
    begins = memory_.opened(task.selection) ? kPauseWithGuestsBegins : kPauseBegins;
  course_.emplace(
      Course::GroupContext{deadlines_, members_, actions_, note_},
      Course::Params{task, end_state, stable_state_, timeout, inside, barrier, begins, deep_},
      epoch_, now);
}

void Group::tell(Event event, Time now) {
  if (!course_) return;
  course_->tell(std::move(event), now);
  conclude_if_ended(now);
}

void Group::conclude_if_ended(Time now) {
  if (!course_ || !course_->end()) return;
  conclude(now);
  look_at_requests(now);
}

void Group::conclude(Time now) {
  const bool inside = course_->params().inside;
  const bool local = course_->params().task.selection.local();
  epoch_ = course_->epoch();
  deep_ = course_->deep();
  // Without ranks it is as it was: no rank has seen any of it.
  const GroupState end = course_->end()->state;
  const bool lost_all = end == GroupState::kPausing || end == GroupState::kResuming;
  if (!local) {
    state_ = lost_all ? stable_state_ : end;
    since_ = now;
  }
  if (state_ == GroupState::kRunning) by_operator_ = false;
  Outcome outcome = course_->take_outcome(now);
  course_.reset();
  const Task task = outcome.task;
  Status& status = outcome.status;
  // Its ranks run on. Their devices are busy, with what may need ranks that wait to be next.
  outcome.again = inside && local && status.code() == Code::kDeadlineExceeded &&
                  outcome.spans.back().phase == kPauseBegins;
  if (!status.ok()) {
    std::string text = describe(task, name_) + ": " + status.text();
    if (!lost_all) text += "; the group is " + std::string(to_string(state_));
    status = Status(status.code(), std::move(text));
    note_ = outcome.again ? "" : status.text();
  } else {
    (task.op == Operation::kPause ? last_pause_ : last_resume_) = outcome;
  }
  const Status result = status;
  const bool again = outcome.again;
  if (!lost_all && !local) actions_.push_back(action::StateChanged{state_});
  actions_.push_back(action::Finished{std::move(outcome)});

  if (local)
    answer_local(task, result, again, now);
  else if (inside || satisfied(task))
    answer(requests_.take(task), result);
}

// ---- time ---------------------------------------------------------------------------------------

Time Group::wakeup() const {
  Time time = course_ ? course_->wakeup() : std::min(patience_, deepens_at());
  for (const Task& task : requests_.tasks()) time = std::min(time, request_deadline(task));
  return std::min(time, requests_.tell_at());
}

void Group::tick(Time now) {
  for (const Task& task : requests_.tasks()) expire_requests(task, now);
  tell_waits(now);
  if (course_) course_->tick(now);
  go_on_if_all_are_back(now);
  conclude_if_ended(now);
  // What has been given up may have been all that others of its unit waited for.
  look_at_requests(now);
  if (now < deepens_at()) return;
  overdue_ = now;
  actions_.push_back(action::Overdue{});
}

/// Counted anew after whatever has happened to the group since, such as a try that failed.
Time Group::deepens_at() const {
  // Memory that is paused in part will return soon.
  const bool counts = deadlines_.deepen > Duration::zero() && state_ == GroupState::kPaused &&
                      !members_.empty() && !deep_ && !course_ && !interrupted_ &&
                      !memory_.awaited() && !has_remainder(Operation::kPause);
  return counts ? std::max(since_, overdue_) + deadlines_.deepen : kNever;
}

// ---- requests from inside -----------------------------------------------------------------------

void Group::request(RankId rank, std::uint64_t seq, const Task& task, Duration timeout, Time now,
                    const RankSet& together) {
  if (!course_ && !interrupted_ && !is_local(task) && satisfied(task)) {
    actions_.push_back(action::Answer{rank, seq, {}});
    return;
  }
  if (timeout == Duration::zero()) timeout = deadlines_.request;
  if (Status status = requests_.add({rank, seq, task, now + timeout, together, now + kTellWaits});
      !status.ok()) {
    actions_.push_back(
        action::Answer{rank, seq, {status.code(), "group '" + name_ + "': " + status.text()}});
    return;
  }
  look_at_requests(now);
}

void Group::withdraw(RankId rank, std::uint64_t seq, Time now) {
  for (const Task& task : requests_.tasks()) {
    requests_.withdraw(task, rank, seq);
    if (!interrupted_) answer_withdrawn(task);
  }
  look_at_requests(now);
}

void Group::answer_withdrawn(const Task& task) {
  const auto its = [&](const auto& r) { return r.withdrawn && !under_way(task, r.rank); };
  const std::vector<Requests::Request> withdrawn = requests_.take(task, its);
  if (withdrawn.empty()) return;
  answer(withdrawn,
         {Code::kCancelled,
          describe(task, name_) + " from inside: the rank has withdrawn it before it began"});
}

bool Group::is_local(const Task& task) const {
  const GroupState state = course_ || interrupted_ ? stable_state_ : state_;
  return !task.selection.all() && state == GroupState::kRunning;
}

std::vector<RankUnit> Group::units(const Task& task) const {
  const std::vector<RankId> ids = members_.ids();
  const std::set<RankId> members(ids.begin(), ids.end());
  return requests_.units(task, [&](RankId rank) {
    std::set<RankId> others = memory_.sharers(rank, task.selection);
    std::erase_if(others, [&](RankId other) { return !members.contains(other); });
    return others;
  });
}

void Group::look_at_requests(Time now) {
  if (course_ || interrupted_) return;
  for (const Task& task : requests_.tasks()) answer_withdrawn(task);
  for (const Task& task : requests_.tasks()) {
    if (!is_local(task)) {
      if (satisfied(task)) answer(requests_.take(task), {});
      continue;
    }
    for (const RankUnit& unit : units(task)) {
      // Some of a set may have none of it. All of them are asked for it all the same.
      const bool known = unit.complete() || !unit.sets;
      if (known && satisfied(task.of(unit.ranks)))
        answer(requests_.take(task, [&](const auto& r) { return unit.ranks.contains(r.rank); }),
               {});
    }
  }
  for (const Task& task : requests_.tasks()) {
    if (is_local(task)) {
      if (begin_local(task, now)) return;
      continue;
    }
    if (!memory_.awaited() && requests_.complete(task, members_.ids()) &&
        !waits_for_operator(task) && can_start(task).ok())
      return begin(task, Duration::zero(), true, Barrier::kNone, now);
  }
}

bool Group::begin_local(const Task& task, Time now) {
  std::set<RankId> ranks;
  for (const RankUnit& unit : units(task)) {
    if (!unit.complete() || (unit.alone && !ranks.empty())) continue;
    ranks.insert(unit.ranks.begin(), unit.ranks.end());
    if (unit.alone) break;
  }
  if (ranks.empty() || memory_.awaited() || !can_start(task.of(ranks)).ok()) return false;
  Duration turn{};
  if (task.op == Operation::kPause) {
    turn = std::min(kBusyTurn, deadlines_.quiesce);
    for (const Requests::Request& r : requests_.of(task))
      if (ranks.contains(r.rank) && r.deadline != kNever) turn = std::min(turn, r.deadline - now);
    turn = std::max(turn, Duration(1));
  }
  begin(task.of(ranks), turn, true, Barrier::kNone, now);
  return true;
}

void Group::answer_local(const Task& task, const Status& status, bool again, Time now) {
  const std::set<RankId>& ranks = task.selection.ranks;
  const Task asked = task.of({});
  const auto its = [&](const Requests::Request& r) { return ranks.contains(r.rank); };
  if (again) {
    answer(requests_.take(asked, [&](const auto& r) { return its(r) && r.deadline <= now; }),
           status);
    return requests_.put_back(asked, ranks, [&](Requests::Request& r) { r.why = status.text(); });
  }
  std::vector<RankUnit> tried = units(asked);
  std::erase_if(tried, [&](const RankUnit& unit) {
    return std::none_of(unit.ranks.begin(), unit.ranks.end(),
                        [&](RankId rank) { return ranks.contains(rank); });
  });
  // The others must not fail for what one rank lacks.
  if (!status.ok() && tried.size() > 1 && !satisfied(task))
    return requests_.put_back(asked, ranks, [](Requests::Request& r) { r.alone = true; });
  answer(requests_.take(asked, its), status);
}

bool Group::local() const { return course_ && course_->params().task.selection.local(); }

void Group::set_aside(Time now) {
  if (!local() || !course_->params().inside || course_->phase() != kPauseBegins) return;
  course_->set_aside(now);
  conclude(now);
}

bool Group::waits_for_operator(const Task& task) const {
  return state_ == GroupState::kPaused && by_operator_ && task.op == Operation::kResume &&
         !task.selection.all();
}

void Group::answer(const std::vector<Requests::Request>& requests, const Status& status) {
  for (const Requests::Request& r : requests)
    actions_.push_back(action::Answer{r.rank, r.seq, status});
}

std::string Group::what_is_under_way() const {
  if (!course_ && !interrupted_) return {};
  const std::string group = "group '" + name_ + "' is " + std::string(to_string(state_));
  if (!course_) return group + " and waits for its ranks to reconnect";
  const Task& task = course_->params().task;
  return (task.selection.local() ? describe(task, name_) + " is under way" : group) + " (" +
         std::string(phase_name(phase())) + ")";
}

bool Group::under_way(const Task& task, RankId rank) const {
  return course_ && course_->params().task.of({}) == task && course_->takes_part(rank);
}

// Requests for what is under way, or will be as soon as the group can, wait for that and not for
// other ranks.
Time Group::request_deadline(const Task& task) const {
  if (interrupted_ || waits_for_operator(task)) return kNever;
  if (!is_local(task)) {
    const bool now = course_ && task == course_->params().task;
    return now || (course_ && requests_.complete(task, members_.ids())) ? kNever
                                                                        : requests_.deadline(task);
  }
  Time earliest = kNever;
  for (const Requests::Request& r : requests_.of(task))
    if (!under_way(task, r.rank)) earliest = std::min(earliest, r.deadline);
  return earliest;
}

void Group::expire_requests(const Task& task, Time now) {
  if (request_deadline(task) > now) return;
  if (!is_local(task)) {
    answer(requests_.take(task),
           {Code::kDeadlineExceeded,
            describe(task, name_) + " from inside: not every rank asked for it in time; missing: " +
                members_.names(requests_.missing(task, members_.ids())) + "; the group is " +
                std::string(to_string(state_))});
    return;
  }
  for (const RankUnit& unit : units(task)) {
    const auto late = [&](const Requests::Request& r) {
      return unit.ranks.contains(r.rank) && r.deadline <= now && !under_way(task, r.rank);
    };
    const std::string why = what_it_waits_for(task, unit);
    answer(requests_.take(task, late),
           {Code::kDeadlineExceeded,
            describe(task.of(unit.ranks), name_) + " from inside: not done in time; " + why});
  }
}

std::string Group::what_it_waits_for(const Task& task, const RankUnit& unit) const {
  if (!unit.complete()) {
    std::string missing = members_.names({unit.missing.begin(), unit.missing.end()});
    for (const std::string& set : unit.lacking) missing += (missing.empty() ? "" : ", ") + set;
    return "missing, because they share this memory or are of one set: " + missing;
  }
  for (const Requests::Request& r : requests_.of(task))
    if (unit.ranks.contains(r.rank) && !r.why.empty()) return r.why;
  return course_ ? what_is_under_way() : "group '" + name_ + "' is not ready for it";
}

void Group::tell_waits(Time now) {
  for (const Task& task : requests_.tell(now, kTellWaits)) {
    if (!is_local(task)) {
      const std::vector<RankId> missing = requests_.missing(task, members_.ids());
      const std::string what = describe(task, name_) + " from inside waits";
      if (!missing.empty())
        actions_.push_back(action::Waits{what + "; missing: " + members_.names(missing)});
      else if (waits_for_operator(task))
        actions_.push_back(action::Waits{what + " until an operator resumes the group"});
      continue;
    }
    for (const RankUnit& unit : units(task))
      actions_.push_back(action::Waits{describe(task.of(unit.ranks), name_) +
                                       " from inside waits; " + what_it_waits_for(task, unit)});
  }
}

}  // namespace amem
