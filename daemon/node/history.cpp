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

}  // namespace amem
