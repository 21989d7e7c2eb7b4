// StageLoad: the bytes of some groups on the devices of a stage, and who uses which device.
//
// Pure; not synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/turns/view.h"

namespace amem {

/// What a group brings to each device.
struct DeviceShare {
  std::uint64_t bytes = 0;
  bool user = false;          // it runs there, or has memory there that can leave
  bool alone = false;         // no other user may be there
  std::uint64_t restore = 0;  // bytes besides, which may also lie in the margin
  std::uint64_t there = 0;    // of its bytes, on the device already
};
using DeviceShares = std::vector<DeviceShare>;

/// While it runs. In its first turn it is alone on the devices that it uses.
DeviceShares running(const GroupView& group);
/// Returns what it needs to come in: as running(), and what its restore needs.
DeviceShares coming(const GroupView& group);
/// Returns what stays on the devices when the group has left.
DeviceShares left_over(const GroupView& group);
/// Returns what a group that is out still has on the devices.
DeviceShares remaining(const GroupView& group);

class StageLoad {
 public:
  /// `view` outlives this object.
  explicit StageLoad(const StageView& view);

  void add(const DeviceShares& shares);
  void remove(const DeviceShares& shares);  // REQUIRES: they have been added
  bool has_space_for(const DeviceShares& shares) const;
  /// The first device on which it has none. REQUIRES: !has_space_for().
  std::size_t lacks_space(const DeviceShares& shares) const;
  /// Beside what others than groups have there.
  std::uint64_t free_on(std::size_t device) const;
  /// Returns whether it is within limits. Does not count what a group that is alone really has
  /// there, or what others have.
  bool within_limits() const;
  /// Returns whether it is within limits, and whoever must be alone is.
  bool fits() const;

 private:
  struct OnDevice {
    std::uint64_t usable = 0;
    std::uint64_t available = 0;  // less what others have
    std::uint64_t used = 0;
    std::uint64_t margin = 0;
    std::uint64_t restores = 0;
    std::uint32_t users = 0;
    std::uint32_t alone = 0;  // of these, the ones that need it for themselves
  };
  static bool has_space(const OnDevice& on, const DeviceShare& share);

  std::vector<OnDevice> on_;
};

}  // namespace amem
