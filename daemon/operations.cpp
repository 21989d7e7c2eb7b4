#include "daemon/operations.h"

#include <utility>

#include "daemon/reports.h"

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
  begin(*group.value(), task, {observer, "", timeout});
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
  begin(*first.value(), Operation::kPause, {observer, in, timeout});
}

void Operations::begin(GroupEntry& group, const Task& task, Running running) {
  if (!closed_.ok()) return running.observer->finished(closed_);
  Status status = known_tags(node_.allocations, group.id, task.selection);
  if (status.ok()) status = group.machine.can_start(task);
  if (!status.ok()) return running.observer->finished(status);
  const Duration timeout = running.timeout;
  running_[group.id] = std::move(running);
  if (status = group.machine.start(task, timeout, Clock::now()); !status.ok()) {
    const Observer observer = std::move(running_[group.id].observer);
    running_.erase(group.id);
    return observer->finished(status);
  }
  drive_(group);
}

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
}

void Operations::finished(const GroupEntry& group, const Outcome& outcome) {
  const auto it = running_.find(group.id);
  if (it == running_.end()) return;
  const Running running = std::move(it->second);
  running_.erase(it);
  if (!outcome.status.ok()) return running.observer->finished(outcome.status);

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
  }
  running.observer->progress(last);
  if (running.then_resume.empty()) return running.observer->finished({});

  Result<GroupEntry*> next = find(running.then_resume);
  if (!next.ok()) return running.observer->finished(next.status());
  begin(*next.value(), Operation::kResume, {running.observer, "", running.timeout});
}

void Operations::close(const Status& status) {
  closed_ = status;
  std::map<GroupId, Running> running;
  running.swap(running_);
  for (const auto& [id, r] : running) r.observer->finished(status);
}

}  // namespace amem
