#include "daemon/node/totals.h"

#include <algorithm>

#include "daemon/node/history.h"

namespace amem {

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
}

void Totals::add_swap(Code result, Duration time) {
  ++results_[{kSwap, result}];
  if (result == Code::kOk) add_time(kSwap, Phase::kNone, time);
}

}  // namespace amem
