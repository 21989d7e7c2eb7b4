#include "daemon/node/histograms.h"

#include <algorithm>

namespace amem {

void Histogram::add(Duration time) {
  ++count;
  sum += time;
  const auto bound = std::find_if(kBoundsMs.begin(), kBoundsMs.end(), [time](auto ms) {
    return time <= std::chrono::milliseconds(ms);
  });
  ++buckets[static_cast<std::size_t>(bound - kBoundsMs.begin())];
}

void Histograms::add(const Outcome& outcome) {
  if (!outcome.status.ok()) return;
  all_[{outcome.task.op, Phase::kNone}].add(outcome.total);
  for (const PhaseTime& phase : outcome.times) all_[{outcome.task.op, phase.phase}].add(phase.time);
}

}  // namespace amem
