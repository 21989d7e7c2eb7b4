// GroupOperation: what a pause and a resume share: how the actions that both have are carried out,
// and with what.
//
// Each run() carries out one action of the group and tells the group what came of it, which may
// bring up further actions; the caller takes those in turn.
//
// For the loop's thread; works on the Node's tables. Lives from the group's Begun to its Finished.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/event_loop.h"
#include "daemon/checkpoint/deep_proof.h"
#include "daemon/checkpoint/group_checkpoint.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/workers.h"
#include "daemon/node/node.h"
#include "daemon/operations/outbox.h"
#include "daemon/operations/restore_space.h"
#include "daemon/operations/saved_bytes.h"
#include "daemon/transactions/headroom.h"

namespace amem {

/// All of it outlives every operation.
struct Means {
  Node& node;
  const Devices& devices;
  Workers& workers;
  Outbox& outbox;
  SavedBytes& saved;
  EventLoop& loop;
  ProcessCalls& processes;
  DeepProof& deep_proof;
  RestoreSpace& restore_space;
  Duration create_limit;      // for what is asked of a device at once; shorter than the phase
  Duration checkpoint_limit;  // for all processes of a group; shorter than the phase
};

/// What the ranks of the group see, each its own. kFailedPrecondition: a rank does not say, or sees
/// a device that amemd does not: no deep pause of it is proven.
Result<DeepProof::Sets> visible_to(const Means& means, const GroupEntry& group);

/// The way back to an operation from a later turn of the loop: runs `what`, and lets the group go
/// on. Does nothing when the operation is over. May be copied, and outlives the operation.
using Back = std::function<void(const std::function<void()>& what)>;

class GroupOperation {
 public:
  GroupOperation(const GroupOperation&) = delete;
  GroupOperation& operator=(const GroupOperation&) = delete;

  void run(const action::Ask& ask);
  void run(const action::Arrived& arrived);

 protected:
  GroupOperation(const Means& means, GroupEntry& group, Selection what, Back back)
      : means_(means), group_(group), what_(std::move(what)), back_(std::move(back)) {}
  ~GroupOperation() = default;

  /// Closes the descriptors of what is on a device, is of the operation's tags and `leaves`. When
  /// the holder has closed them too, calls `gone` with what that was and answers the group with
  /// what the driver says of it, and with `stays`: what should have left before, and has not.
  BytesByDevice drop(const Allocations::Filter& leaves,
                     std::function<void(const BytesByDevice&)> gone = nullptr, Status stays = {});
  /// Bytes of each device that these groups have still to take, those of their processes included.
  BytesByDevice needs_of(const std::vector<GroupId>& groups, const Selection& what) const;
  /// Calls of an operation that has ended, such as a resume that was called off, still go on. Then
  /// `again` is called in a while.
  bool calls_go_on(const std::function<void()>& again) const;
  /// The processes of these ranks.
  std::vector<CheckpointTarget> processes_of(const std::vector<RankId>& ranks) const;
  /// In which lanes of the holder memory of these devices is.
  std::set<std::uint32_t> lanes_of(const std::set<DeviceUuid>& devices) const;

  const Means& means_;
  GroupEntry& group_;
  const Selection what_;
  const Back back_;

 private:
  struct Leaving;
  void dropped(const Leaving& leaving, const Workers::Uses& after);

  std::uint64_t drops_ = 0;  // the last is the one that counts
};

}  // namespace amem
