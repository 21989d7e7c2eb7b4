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
  if (Status status = begin(*group.value(), task, timeout, observer, nullptr); !status.ok())
    observer->finished(status);
}

void Operations::swap(const std::string& out, const std::string& in,
                      const std::set<std::string>& discard, Duration timeout,
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
  swap->link.arriving = second.value()->id;
  const Task pause(Operation::kPause, {}, discard);
  if (Status status = begin(*first.value(), pause, timeout, observer, swap); !status.ok())
    observer->finished(status);
}

/// Not OK: it has not begun, and nobody has been told.
Status Operations::begin(GroupEntry& group, const Task& task, Duration timeout,
                         const Observer& observer, const std::shared_ptr<Swapping>& swap,
                         bool held) {
  if (!closed_.ok()) return closed_;
  Status status = check_tags(node_.allocations, group.id, task);
  if (status.ok()) status = group.machine.start(task, timeout, Clock::now(), held);
  if (!status.ok()) return status;
  Running& running = running_[group.id];
  running.observer = observer;
  running.swap = swap;
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
      swap->link.resume = nullptr;
      if (next == Swap::Next::kGoOn)
        in->second.machine.tell(event::GoOn{}, Clock::now());
      else
        in->second.machine.tell(event::GiveUp{swap->logic.why_given_up()}, Clock::now());
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
  swap->held = held;
  return begin(*found.value(), Operation::kResume, swap->timeout, swap->observer, swap, held);
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

void Operations::run(GroupEntry& group, const action::Begun& begun) {
  Running& running = running_[group.id];
  Swapping* const swap = running.swap.get();
  if (begun.task.op == Operation::kPause) {
    const SwapLink* link = swap != nullptr && duplex_ ? &swap->link : nullptr;
    running.operation.emplace<PauseOperation>(means_, group, begun.task, link);
    return;
  }
  const bool held = swap != nullptr && swap->held;
  auto& resume = running.operation.emplace<ResumeOperation>(
      means_, group, begun.task.selection, held ? std::optional(swap->out) : std::nullopt,
      [this, id = group.id](Epoch epoch) { create_later(id, epoch); });
  if (held) swap->link.resume = &resume;
}

void Operations::create_later(GroupId id, Epoch epoch) {
  means_.loop.post([this, id, epoch] {
    const auto group = node_.groups.find(id);
    auto* const resume = operation_of<ResumeOperation>(id);
    if (group == node_.groups.end() || resume == nullptr) return;
    const Group& machine = group->second.machine;
    if (machine.phase() != Phase::kCreate || machine.epoch() != epoch) return;
    resume->create_slice();
    if (machine.phase() != Phase::kCreate) drive_(group->second);
  });
}

void Operations::run(GroupEntry& group, const action::Leaves&) {
  const auto it = running_.find(group.id);
  if (it == running_.end() || it->second.swap == nullptr || !closed_.ok()) return;
  const std::shared_ptr<Swapping> swap = it->second.swap;
  carry_out(swap, swap->logic.out_leaves());
}

void Operations::run(GroupEntry& group, const action::Progress& progress) {
  const auto it = running_.find(group.id);
  if (it == running_.end() || it->second.observer == nullptr) return;
  v1::Progress message;
  message.set_group(group.machine.name());
  message.set_phase(std::string(phase_name(progress.phase)));
  message.set_ranks_done(progress.ranks_done);
  message.set_ranks_total(progress.ranks_total);
  message.set_bytes(progress.bytes);
  message.set_elapsed_us(to_us(progress.elapsed));
  it->second.observer->progress(message);
}

void Operations::run(GroupEntry& group, const action::Finished& finished) {
  const auto ended = running_.extract(group.id);
  if (ended.empty()) return;
  const Running& running = ended.mapped();
  const std::shared_ptr<Swapping>& swap = running.swap;
  if (swap != nullptr && group.id == swap->in) swap->link.resume = nullptr;
  if (running.observer == nullptr) return;
  const Outcome& outcome = finished.outcome;
  if (outcome.status.ok()) tell_done(group, outcome, running);

  if (swap == nullptr) return running.observer->finished(outcome.status);
  if (group.id == swap->out) {
    swap->out_ended = Clock::now();
    if (outcome.status.ok()) swap->pause = outcome;
    carry_out(swap, swap->logic.out_ended(outcome.status));
  } else {
    if (outcome.status.ok()) swap->resume = outcome;
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
    last.set_dropped_bytes(dropped(node_, group, outcome.task.selection));
  } else if (running.swap != nullptr) {
    last.set_swap_us(to_us(Clock::now() - running.swap->began));
  }
  running.observer->progress(last);
}

void Operations::close(const Status& status) {
  closed_ = status;
  std::set<Observer> observers;  // one may watch both groups of a swap
  for (auto& [id, running] : running_)
    if (running.observer != nullptr) observers.insert(std::exchange(running.observer, nullptr));
  for (const Observer& observer : observers) observer->finished(status);
}

}  // namespace amem
