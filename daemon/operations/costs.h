// Costs: what the broker's own thread spends on each phase: CPU time, and time in the driver.
//
// The meter reads the thread's CPU clock when the work changes to another phase or group, so it
// costs some system calls per operation and none per allocation. What the loop does for others
// meanwhile counts for the phase under way.
#pragma once

#include <map>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/phases/phase_times.h"

namespace amem {

/// For the loop's thread.
class CostMeter {
 public:
  /// From now on the thread works for this phase of the group; kNone: for none.
  void enter(GroupId group, Phase phase);
  /// Adds what the group's phases have cost since the last take() to the entries of each phase
  /// (rolled back and gone through twice: to the last one).
  void take(GroupId group, std::vector<PhaseTime>& times);

 private:
  struct Cost {
    Duration broker{};
    Duration driver{};
  };

  GroupId group_ = 0;
  Phase phase_ = Phase::kNone;
  Cost mark_;
  std::map<GroupId, std::map<Phase, Cost>> costs_;
};

}  // namespace amem
