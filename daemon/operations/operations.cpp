#include "daemon/operations/operations.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <set>
#include <utility>

#include "daemon/operations/reports.h"

namespace amem {

Result<GroupEntry*> Operations::find(const std::string& name) {
  if (GroupEntry* group = node_.find_group(name)) return group;
  std::string text = "no group '" + name + "'; ";
  if (node_.groups.empty()) {
    text += "there are none, a group begins with its first rank";
  } else {
    text += "there are";
    for (const auto& [id, entry] : node_.groups) text += " '" + entry.machine.name() + "'";
  }
  return Status(Code::kNotFound, text);
}

void Operations::start(const Task& task, const std::string& name, Duration timeout,
                       const Observer& observer) {
  Result<GroupEntry*> group = find(name);
  if (!group.ok()) return observer->finished(group.status());
  if (Status status = begin(*group.value(), task, timeout, {observer, nullptr}, {}); !status.ok())
    observer->finished(status);
}

void Operations::swap(const std::string& out, const std::string& in, Duration timeout,
                      const Observer& observer) {
  Result<GroupEntry*> first = find(out);
  if (!first.ok()) return observer->finished(first.status());
  Result<GroupEntry*> second = find(in);
  if (!second.ok()) return observer->finished(second.status());
  if (out == in)
    return observer->finished(
        {Code::kInvalidArgument, "a swap needs two groups, not '" + out + "' twice"});
  // Refused before the pause, not after it.
  if (Status status = second.value()->machine.can_start(Operation::kResume); !status.ok())
    return observer->finished(status);
  const auto swap =
      std::make_shared<Swapping>(Swap(out, in, duplex_), first.value()->id, observer, timeout);
  Other other;
  if (duplex_) other.arriving = second.value()->id;
  if (Status status = begin(*first.value(), Operation::kPause, timeout, {observer, swap}, other);
      !status.ok())
    observer->finished(status);
}

/// Not OK: it has not begun, and nobody has been told.
Status Operations::begin(GroupEntry& group, const Task& task, Duration timeout, Running running,
                         const Other& other) {
  if (!closed_.ok()) return closed_;
  Status status = known_tags(node_.allocations, group.id, task.selection);
  if (status.ok())
    status = group.machine.start(task, timeout, Clock::now(), other.leaving.has_value());
  if (!status.ok()) return status;
  group.arriving = other.arriving;
  group.leaving = other.leaving;
  running_[group.id] = std::move(running);
  drive_(group);
  return {};
}

// ---- swaps --------------------------------------------------------------------------------------

void Operations::carry_out(const std::shared_ptr<Swapping>& swap, Swap::Next next) {
  switch (next) {
    case Swap::Next::kNothing:
      return;
    case Swap::Next::kBegin:
    case Swap::Next::kBeginHeld: {
      const bool held = next == Swap::Next::kBeginHeld;
      if (const Status status = begin_in(swap, held); !status.ok())
        carry_out(swap, swap->logic.in_ended(status));
      return;
    }
    case Swap::Next::kGoOn:
    case Swap::Next::kGiveUp: {
      const auto in = node_.groups.find(swap->in);
      if (in == node_.groups.end()) return;
      in->second.leaving.reset();
      if (next == Swap::Next::kGoOn)
        in->second.machine.go_on(Clock::now());
      else
        in->second.machine.give_up(swap->logic.why_given_up(), Clock::now());
      return drive_(in->second);
    }
    case Swap::Next::kFinish:
      return finish(*swap);
  }
}

Status Operations::begin_in(const std::shared_ptr<Swapping>& swap, bool held) {
  Result<GroupEntry*> found = find(swap->logic.in());
  if (!found.ok()) return found.status();
  swap->in = found.value()->id;
  swap->in_began = Clock::now();
  Other other;
  if (held) other.leaving = swap->out;
  return begin(*found.value(), Operation::kResume, swap->timeout, {swap->observer, swap}, other);
}

void Operations::finish(const Swapping& swap) {
  const Status result = swap.logic.result();
  const auto ms = [](Duration time) { return static_cast<double>(to_us(time)) / 1000; };
  if (!result.ok()) {
    spdlog::error("swap of '{}' for '{}' failed: {}", swap.logic.out(), swap.logic.in(),
                  result.text());
  } else if (swap.pause && swap.resume) {
    spdlog::info(
        "swap of '{}' for '{}' took {:.1f} ms: pause {:.1f} ms; resume {:.1f} ms, begun {:.1f} ms "
        "{} the end of the pause",
        swap.logic.out(), swap.logic.in(), ms(Clock::now() - swap.began), ms(swap.pause->total),
        ms(swap.resume->total), ms(std::chrono::abs(swap.out_ended - swap.in_began)),
        swap.in_began < swap.out_ended ? "before" : "after");
  }
  swap.observer->finished(result);
}

// ---- what the groups do -------------------------------------------------------------------------

void Operations::progress(const GroupEntry& group, const action::Progress& progress) {
  const auto it = running_.find(group.id);
  if (it == running_.end()) return;
  v1::Progress message;
  message.set_group(group.machine.name());
  message.set_phase(std::string(phase_name(progress.phase)));
  message.set_ranks_done(progress.ranks_done);
  message.set_ranks_total(progress.ranks_total);
  message.set_bytes(progress.bytes);
  message.set_elapsed_us(to_us(progress.elapsed));
  it->second.observer->progress(message);

  // The Save that this tells of has been sent by now, or refused: then the group is in no such
  // phase.
  const std::shared_ptr<Swapping> swap = it->second.swap;
  const Phase now = group.machine.phase();
  if (swap != nullptr && group.id == swap->out && progress.phase == Phase::kSave &&
      (now == Phase::kSave || now == Phase::kRelease))
    carry_out(swap, swap->logic.out_leaves());
}

void Operations::finished(const GroupEntry& group, const Outcome& outcome) {
  const auto it = running_.find(group.id);
  if (it == running_.end()) return;
  const Running running = std::move(it->second);
  running_.erase(it);
  if (outcome.status.ok()) tell_done(group, outcome, running);

  const std::shared_ptr<Swapping>& swap = running.swap;
  if (swap == nullptr) return running.observer->finished(outcome.status);
  if (group.id == swap->out) {
    swap->out_ended = Clock::now();
    if (outcome.status.ok()) swap->pause = outcome;
    node_.groups.at(group.id).arriving.reset();
    carry_out(swap, swap->logic.out_ended(outcome.status));
  } else {
    if (outcome.status.ok()) swap->resume = outcome;
    node_.groups.at(group.id).leaving.reset();
    carry_out(swap, swap->logic.in_ended(outcome.status));
  }
}

void Operations::tell_done(const GroupEntry& group, const Outcome& outcome,
                           const Running& running) {
  v1::Progress last;
  last.set_group(group.machine.name());
  last.set_done(true);
  last.set_elapsed_us(to_us(outcome.total));
  for (const PhaseTime& time : outcome.times) {
    v1::PhaseTime* t = last.add_times();
    t->set_phase(std::string(phase_name(time.phase)));
    t->set_us(to_us(time.time));
    t->set_broker_us(to_us(time.broker));
    t->set_driver_us(to_us(time.driver));
    for (const RankTime& rank : time.ranks) report_rank_time(node_, rank, *t->add_ranks());
  }
  if (outcome.task.op == Operation::kPause) {
    const Leftover stays = leftover(node_, group, outcome.task.selection);
    last.set_pinned_bytes(stays.pinned);
    last.set_unbrokered_bytes(stays.unbrokered);
  } else if (running.swap != nullptr) {
    last.set_swap_us(to_us(Clock::now() - running.swap->began));
  }
  running.observer->progress(last);
}

void Operations::close(const Status& status) {
  closed_ = status;
  std::map<GroupId, Running> running;
  running.swap(running_);
  std::set<Observer> observers;  // one may watch both groups of a swap
  for (const auto& [id, r] : running) observers.insert(r.observer);
  for (const Observer& observer : observers) observer->finished(status);
}

}  // namespace amem
