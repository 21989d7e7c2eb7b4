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
  auto* waiting = const_cast<Waiting*>(find(request.task));
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
  const Waiting* found = find(task);
  if (found == nullptr) return {};
  std::vector<Request> taken = found->requests;
  waiting_.erase(waiting_.begin() + (found - waiting_.data()));
  for (const Request& r : taken)
    if (const auto count = counts_.find(r.rank); --count->second == 0) counts_.erase(count);
  return taken;
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

Time Requests::deadline(const Task& task) const {
  const Waiting* waiting = find(task);
  return waiting != nullptr ? waiting->deadline : kNever;
}

}  // namespace amem
