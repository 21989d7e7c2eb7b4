// GroupOperation: what a pause and a resume share: how the actions that both have are carried out,
// and with what.
//
// Each run() carries out one action of the group and tells the group what came of it, which may
// bring up further actions; the caller takes those in turn.
//
// For the loop's thread; works on the Node's tables. Lives from the group's Begun to its Finished.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "daemon/base/event_loop.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/nvml.h"
#include "daemon/node/node.h"
#include "daemon/operations/outbox.h"
#include "daemon/operations/saved_bytes.h"

namespace amem {

/// All of it outlives every operation.
struct Means {
  Node& node;
  const Devices& devices;
  const Nvml& nvml;
  Outbox& outbox;
  SavedBytes& saved;
  EventLoop& loop;
};

class GroupOperation {
 public:
  GroupOperation(const GroupOperation&) = delete;
  GroupOperation& operator=(const GroupOperation&) = delete;

  void run(const action::Open& open);
  void run(const action::Arrived& arrived);

 protected:
  GroupOperation(const Means& means, GroupEntry& group, Selection what)
      : means_(means), group_(group), what_(std::move(what)) {}
  ~GroupOperation() = default;

  using BytesByDevice = std::map<DeviceUuid, std::uint64_t>;
  /// Closes the descriptors of what is on a device, is of the operation's tags and `leaves`;
  /// answers the group with what the driver says of it. What was closed.
  BytesByDevice drop(const Allocations::Filter& leaves);

  const Means& means_;
  GroupEntry& group_;
  const Selection what_;
};

}  // namespace amem
