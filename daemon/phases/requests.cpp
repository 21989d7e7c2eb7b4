#include "daemon/phases/requests.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace amem {

const Requests::Waiting* Requests::find(const Task& task) const {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& each) { return each.task == task; });
  return found != waiting_.end() ? &*found : nullptr;
}

Status Requests::add(const Request& request) {
  const auto count = counts_.find(request.rank);
  if (count != counts_.end() && count->second >= kMaxPerRank)
    return {Code::kResourceExhausted, "this rank has " + std::to_string(count->second) +
                                          " waiting pause and resume requests, which is the limit"};
  Waiting* waiting = find(request.task);
  if (waiting == nullptr) {
    if (waiting_.size() >= kMaxTasks)
      return {Code::kResourceExhausted,
              std::to_string(waiting_.size()) +
                  " different pause and resume requests wait for other ranks to ask for the same, "
                  "which is the limit. Let all ranks ask for these, or wait until they time out"};
    waiting = &waiting_.emplace_back();
    waiting->task = request.task;
  }
  waiting->requests.push_back(request);
  waiting->ranks.insert(request.rank);
  waiting->deadline = std::min(waiting->deadline, request.deadline);
  ++counts_[request.rank];
  return {};
}

void Requests::forget(RankId rank) {
  if (counts_.erase(rank) == 0) return;
  for (Waiting& each : waiting_) {
    if (each.ranks.erase(rank) == 0) continue;
    std::erase_if(each.requests, [rank](const Request& r) { return r.rank == rank; });
    each.deadline = kNever;
    for (const Request& r : each.requests) each.deadline = std::min(each.deadline, r.deadline);
  }
  std::erase_if(waiting_, [](const Waiting& each) { return each.requests.empty(); });
}

std::vector<Task> Requests::tasks() const {
  std::vector<Task> tasks;
  for (const Waiting& each : waiting_) tasks.push_back(each.task);
  return tasks;
}

std::vector<Requests::Request> Requests::take(const Task& task) {
  return take(task, [](const Request&) { return true; });
}

std::vector<Requests::Request> Requests::take(const Task& task,
                                              const std::function<bool(const Request&)>& match) {
  std::vector<Request> taken;
  Waiting* const found = find(task);
  if (found == nullptr) return taken;
  std::vector<Request> left;
  for (Request& r : found->requests) (match(r) ? taken : left).push_back(std::move(r));
  for (const Request& r : taken)
    if (const auto count = counts_.find(r.rank); --count->second == 0) counts_.erase(count);
  found->requests = std::move(left);
  found->ranks.clear();
  found->deadline = kNever;
  for (const Request& r : found->requests) {
    found->ranks.insert(r.rank);
    found->deadline = std::min(found->deadline, r.deadline);
  }
  std::erase_if(waiting_, [](const Waiting& each) { return each.requests.empty(); });
  return taken;
}

void Requests::put_back(const Task& task, const std::set<RankId>& ranks,
                        const std::function<void(Request&)>& change) {
  Waiting* const found = find(task);
  if (found == nullptr) return;
  for (Request& r : found->requests)
    if (ranks.contains(r.rank)) change(r);
  std::rotate(waiting_.begin() + (found - waiting_.data()),
              waiting_.begin() + (found - waiting_.data()) + 1, waiting_.end());
}

void Requests::withdraw(const Task& task, RankId rank, std::uint64_t seq) {
  if (Waiting* const found = find(task); found != nullptr)
    for (Request& r : found->requests)
      if (r.rank == rank && r.seq == seq) r.withdrawn = true;
}

const std::vector<Requests::Request>& Requests::of(const Task& task) const {
  static const std::vector<Request> none;
  const Waiting* const waiting = find(task);
  return waiting != nullptr ? waiting->requests : none;
}

std::vector<RankUnit> Requests::units(const Task& task,
                                      const std::function<std::set<RankId>(RankId)>& linked) const {
  std::vector<RankUnit> all;
  const Waiting* const waiting = find(task);
  if (waiting == nullptr) return all;
  std::map<std::string, std::set<RankId>> sets;  // by name, who has asked
  std::map<RankId, std::map<std::string, std::uint32_t>> sets_of;
  for (const Request& r : waiting->requests) {
    if (r.set.name.empty()) continue;
    sets[r.set.name].insert(r.rank);
    std::uint32_t& count = sets_of[r.rank][r.set.name];
    count = std::max(count, r.set.count);
  }
  std::set<RankId> known;
  for (const RankId first : waiting->ranks) {
    if (known.contains(first)) continue;
    RankUnit unit;
    std::map<std::string, std::uint32_t> counts;
    std::vector<RankId> to_look_at = {first};
    while (!to_look_at.empty()) {
      const RankId rank = to_look_at.back();
      to_look_at.pop_back();
      if (!unit.ranks.insert(rank).second) continue;
      if (!waiting->ranks.contains(rank)) unit.missing.insert(rank);
      const std::set<RankId> others = linked(rank);
      to_look_at.insert(to_look_at.end(), others.begin(), others.end());
      for (const auto& [name, count] : sets_of[rank]) {
        counts[name] = std::max(counts[name], count);
        to_look_at.insert(to_look_at.end(), sets[name].begin(), sets[name].end());
      }
    }
    unit.sets = !counts.empty();
    for (const auto& [name, count] : counts)
      if (sets[name].size() < count)
        unit.lacking.insert(std::to_string(count - sets[name].size()) + " of the " +
                            std::to_string(count) + " ranks of '" + name + "'");
    for (const Request& r : waiting->requests)
      if (unit.ranks.contains(r.rank)) unit.alone = unit.alone || r.alone;
    known.insert(unit.ranks.begin(), unit.ranks.end());
    all.push_back(std::move(unit));
  }
  return all;
}

bool Requests::complete(const Task& task, const std::vector<RankId>& ranks) const {
  const Waiting* waiting = find(task);
  return waiting != nullptr && !ranks.empty() && waiting->ranks.size() >= ranks.size() &&
         missing(task, ranks).empty();
}

std::vector<RankId> Requests::missing(const Task& task, const std::vector<RankId>& ranks) const {
  const Waiting* waiting = find(task);
  if (waiting == nullptr) return ranks;
  std::vector<RankId> result;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(result),
               [&](RankId rank) { return !waiting->ranks.contains(rank); });
  return result;
}

Time Requests::tell_at() const {
  Time earliest = kNever;
  for (const Waiting& each : waiting_)
    for (const Request& r : each.requests) earliest = std::min(earliest, r.tell_at);
  return earliest;
}

std::vector<Task> Requests::tell(Time now, Duration interval) {
  std::vector<Task> due;
  for (Waiting& each : waiting_) {
    bool any = false;
    for (Request& r : each.requests) any = any || r.tell_at <= now;
    if (!any) continue;
    for (Request& r : each.requests) r.tell_at = now + interval;
    due.push_back(each.task);
  }
  return due;
}

Time Requests::deadline(const Task& task) const {
  const Waiting* waiting = find(task);
  return waiting != nullptr ? waiting->deadline : kNever;
}

}  // namespace amem
