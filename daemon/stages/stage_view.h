// What a stage is decided on from amemd's tables.
//
// Reads only. For the loop's thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/workers.h"
#include "daemon/node/node.h"
#include "daemon/stages/waits.h"
#include "daemon/turns/view.h"

namespace amem {

/// A stage as it is configured.
struct StageRules {
  std::string name;
  TurnRules rules;
  std::vector<StageDevice> devices;
  std::optional<Duration> min_residency;
};

/// A rank that has not reported its work for so long after it said that it works is asked again;
/// one that has not answered for so long after that does not count as working.
inline constexpr Duration kAskForWork = std::chrono::seconds(5);
inline constexpr Duration kNoAnswer = std::chrono::seconds(10);

/// What others than the groups of a stage that take turns have on its devices.
struct OthersUse {
  DeviceBytes all;
  DeviceBytes brokered;  // of it, groups
};

class StageViews {
 public:
  /// Everything passed in outlives this object.
  StageViews(const Node& node, const Workers::Uses& seen, const StageWaits& waits)
      : node_(node), seen_(seen), waits_(waits) {}

  /// `seen`: as others_use() said when nothing was on its way.
  StageView of(const StageRules& stage, const StageMemory& memory, const OthersUse& seen,
               Time now) const;
  /// By what was last seen of the devices. REQUIRES: no group of the stage has moved since.
  OthersUse others_use(const StageRules& stage, const StageMemory& memory) const;
  /// One that would begin in the stage, without memory.
  GroupView beginning(const StageRules& stage, const std::string& name,
                      const Account& account) const;

 private:
  GroupView view(const StageRules& stage, const GroupEntry& group) const;
  /// Of all groups of the node that take turns in the stage, or of all that do not.
  DeviceBytes resident(const StageRules& stage, const StageMemory& memory, bool of_takers) const;

  const Node& node_;
  const Workers::Uses& seen_;  // how much of devices is in use
  const StageWaits& waits_;
};

/// Where the group is, for its stage.
Presence presence_of(const GroupEntry& group);
/// Of a group that its stage has paused: what is on devices and can leave. Bytes.
std::uint64_t remainder_of(const Node& node, const GroupEntry& group);

}  // namespace amem
