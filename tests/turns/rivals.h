// What Turns is compared with: one that knows when each group has work next, and the fewest
// resumes that there can be.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/turns/player.h"
#include "tests/turns/trace.h"

namespace amem::turn_traces {

/// Belady's rule: who has work again last leaves. Serves who asked first, and keeps to the same
/// grace, idle, residency and max_hold.
class FarthestNextUse : public Oracle {
 public:
  explicit FarthestNextUse(const Trace& trace) : trace_(&trace) {}
  std::optional<TurnSwitch> decide(const std::vector<Group>& groups, Time now) override;
  Time wakeup(const std::vector<Group>& groups, Time now) const override;

 private:
  Time leaves_from(std::size_t index, const Group& group) const;

  const Trace* trace_;
  std::uint64_t switches_ = 0;
};

/// To serve the groups in this order, without residency: by looking at every set of groups that
/// fit. Nothing: there are more than six groups.
std::optional<std::uint64_t> fewest_resumes(const Trace& trace,
                                            const std::vector<std::size_t>& order);

}  // namespace amem::turn_traces
