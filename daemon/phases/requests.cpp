#include "daemon/phases/requests.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace amem {

Status Requests::add(const Request& request) {
  const auto same_rank = std::count_if(waiting_.begin(), waiting_.end(),
                                       [&](const Request& r) { return r.rank == request.rank; });
  if (static_cast<std::size_t>(same_rank) >= kMaxPerRank)
    return {Code::kResourceExhausted, "this rank has " + std::to_string(same_rank) +
                                          " pause and resume requests waiting already"};
  waiting_.push_back(request);
  return {};
}

void Requests::forget(RankId rank) {
  std::erase_if(waiting_, [rank](const Request& r) { return r.rank == rank; });
}

std::vector<Task> Requests::tasks() const {
  std::vector<Task> tasks;
  for (const Request& r : waiting_)
    if (std::find(tasks.begin(), tasks.end(), r.task) == tasks.end()) tasks.push_back(r.task);
  return tasks;
}

std::vector<Requests::Request> Requests::take(const Task& task) {
  const auto taken = std::stable_partition(waiting_.begin(), waiting_.end(),
                                           [&](const Request& r) { return !(r.task == task); });
  std::vector<Request> result(taken, waiting_.end());
  waiting_.erase(taken, waiting_.end());
  return result;
}

bool Requests::complete(const Task& task, const std::vector<RankId>& ranks) const {
  return !ranks.empty() && missing(task, ranks).empty();
}

std::vector<RankId> Requests::missing(const Task& task, const std::vector<RankId>& ranks) const {
  std::vector<RankId> result;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(result), [&](RankId rank) {
    return std::none_of(waiting_.begin(), waiting_.end(),
                        [&](const Request& r) { return r.rank == rank && r.task == task; });
  });
  return result;
}

Time Requests::deadline(const Task& task) const {
  Time earliest = kNever;
  for (const Request& r : waiting_)
    if (r.task == task) earliest = std::min(earliest, r.deadline);
  return earliest;
}

}  // namespace amem
