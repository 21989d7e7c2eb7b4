// Headroom: how much memory of each device a group may take while the group that it takes turns
// with (a swap) has not yet let go of its own.
//
// An account, not a question to the driver: what is free when the swap's second group begins is
// what it may take, until the first has left. A device without a limit is not counted.
//
// Pure. Not synchronised; one Exchange owns it, for all that comes in together.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/protocol.h"
#include "daemon/base/ids.h"
#include "daemon/memory/spares.h"
#include "daemon/phases/task.h"

namespace amem {

class ResumeOperation;

using BytesByDevice = std::map<DeviceUuid, std::uint64_t>;

class Headroom {
 public:
  /// What a device keeps free meanwhile, for page tables and whatever else the driver needs to map
  /// and copy: a device filled to the brim fails calls that a swap in turn would not.
  static std::uint64_t reserve(std::uint64_t device_total);
  /// What a restore needs of a device where the checkpoint has freed so much. `most` of it is free
  /// once all groups are paused.
  static std::uint64_t for_restore(std::uint64_t freed, std::uint64_t most,
                                   std::uint64_t device_total);

  /// At most `bytes` of this device, until lift().
  void limit(const DeviceUuid& device, std::uint64_t bytes) { left_[device] = bytes; }
  bool limited(const DeviceUuid& device) const { return left_.contains(device); }

  /// False: not before the limit is lifted, or something is given back.
  bool take(const DeviceUuid& device, std::uint64_t bytes);
  /// What was taken has not been needed, or the other group has let go of so much.
  void give_back(const DeviceUuid& device, std::uint64_t bytes);
  /// The driver refuses what the account allowed: others took it. Nothing more until the other
  /// group lets go of something, or lift().
  void exhaust(const DeviceUuid& device);

  /// The other group has left: the driver decides.
  void lift() { left_.clear(); }

 private:
  static constexpr std::uint64_t kExhausted = ~0ULL;
  BytesByDevice left_;
};

/// What the operations of one transaction share beyond what daemon/transactions/transaction.h
/// decides: whose memory leaves, whose comes in, and how much of it may come before all that leaves
/// has left. Plain data, for the loop's thread. Outlives the operations that refer to it.
struct Exchange {
  std::vector<GroupId> leaving;                // that have not left yet
  std::vector<GroupId> arriving;               // all of them
  std::map<GroupId, Selection> parts = {};     // of those that leave, if it is not everything
  std::vector<ResumeOperation*> resumes = {};  // under way
  bool at_once = true;         // what arrives begins to come in before all that leaves has left
  BytesByDevice closing = {};  // have left their group, and not their device yet
  BytesByDevice closed = {};   // have left their device
  Spares spares = {};          // have left their group for one that arrives
  bool admitted = false;       // there was space for all that arrive, when the first of them asked
  Headroom headroom = {};      // for all that arrive together; unlimited once no group leaves

  bool leaves(GroupId group, const std::string& tag) const {
    const auto part = parts.find(group);
    return part == parts.end() || part->second.takes(tag);
  }
};

}  // namespace amem
