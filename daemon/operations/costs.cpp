#include "daemon/operations/costs.h"

#include <time.h>

#include "daemon/memory/in_driver.h"

namespace amem {
namespace {

Duration thread_cpu() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace

void CostMeter::enter(GroupId group, Phase phase) {
  if (group == group_ && phase == phase_) return;
  const Cost now{thread_cpu(), InDriver::total()};
  if (phase_ != Phase::kNone) {
    Cost& cost = costs_[group_][phase_];
    cost.broker += now.broker - mark_.broker;
    cost.driver += now.driver - mark_.driver;
  }
  mark_ = now;
  group_ = group;
  phase_ = phase;
}

void CostMeter::take(GroupId group, std::vector<PhaseTime>& times) {
  const auto found = costs_.find(group);
  if (found == costs_.end()) return;
  for (auto time = times.rbegin(); time != times.rend(); ++time) {
    const auto cost = found->second.find(time->phase);
    if (cost == found->second.end()) continue;
    time->broker += cost->second.broker;
    time->driver += cost->second.driver;
    found->second.erase(cost);
  }
  costs_.erase(found);
}

}  // namespace amem
