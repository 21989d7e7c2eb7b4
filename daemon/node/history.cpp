#include "daemon/node/history.h"

#include <algorithm>
#include <utility>

namespace amem {
namespace {

std::size_t spans_of(const PastOperation& operation) {
  std::size_t count = 0;
  for (const PhaseSpan& phase : operation.outcome.spans) count += 1 + phase.ranks.size();
  return count;
}

}  // namespace

std::uint64_t copied(const Outcome& outcome) {
  std::uint64_t bytes = 0;
  for (const PhaseTime& phase : outcome.times)
    for (const RankTime& rank : phase.ranks) bytes += rank.copied;
  return bytes;
}

void History::add(PastOperation operation) {
  if (spans_of(operation) > kMostSpans) operation.outcome.spans.clear();
  spans_ += spans_of(operation);
  operations_.push_back(std::move(operation));
  while (too_much()) drop_one();
}

void History::drop_one() {
  std::map<Owner, std::size_t> counts;
  for (const PastOperation& operation : operations_) ++counts[operation.owner];
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto oldest =
      std::find_if(operations_.begin(), operations_.end(),
                   [&](const PastOperation& each) { return each.owner == most->first; });
  spans_ -= spans_of(*oldest);
  operations_.erase(oldest);
}

void Histogram::add(std::uint64_t amount) {
  ++count_;
  sum_ += amount;
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), amount);
  ++buckets_[static_cast<std::size_t>(bound - bounds_.begin())];
}

void Totals::add_time(std::string_view operation, Phase phase, Duration time) {
  times_.try_emplace({operation, phase}, Histogram::kMicroseconds).first->second.add(to_us(time));
}

void Totals::add(const Outcome& outcome) {
  const std::string_view operation = to_string(outcome.task.op);
  ++results_[{operation, outcome.status.code()}];
  if (!outcome.status.ok()) return;
  add_time(operation, Phase::kNone, outcome.total);
  for (const PhaseTime& phase : outcome.times) add_time(operation, phase.phase, phase.time);
  bytes_.try_emplace(operation, Histogram::kBytes).first->second.add(copied(outcome));
  for (const TagSave& save : outcome.saves) {
    kept_.copied += save.copied;
    kept_.compared += save.compared;
    kept_.unchanged += save.unchanged;
  }
}

void Totals::add(const MovedMemory& memory) {
  memory_.made += memory.made;
  memory_.closed += memory.closed;
  memory_.handed_on += memory.handed_on;
}

void Totals::add_swap(Code result, Duration time) {
  ++results_[{kSwap, result}];
  if (result == Code::kOk) add_time(kSwap, Phase::kNone, time);
}

}  // namespace amem
