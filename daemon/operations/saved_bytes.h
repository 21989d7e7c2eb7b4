// SavedBytes: takes pool chunks for what a pause keeps, and gives them back, but never while a rank
// may still be writing to them.
//
// A Save that was called off (its deadline passed, another rank died) goes on in the rank until the
// rank gets to its next packet. Handing such chunks to another group would let one group's bytes
// overwrite another's, so they wait in the rank's limbo until it has answered, or until its
// process has ended (by pidfd: only then has the driver stopped its copies).
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <map>

#include "common/packet.h"
#include "daemon/base/event_loop.h"
#include "daemon/operations/node.h"

namespace amem {

class SavedBytes {
 public:
  SavedBytes(Node& node, EventLoop& loop) : node_(node), loop_(loop) {}

  /// Takes extents for everything that this pause must keep, where its keepers reach the pool if
  /// there is room. kResourceExhausted: the pool is too small, nothing has changed.
  Status take(const GroupEntry& group, const Task& pause, const Devices& devices);

  /// The rank says how it has stored what it was to save in this epoch; what that leaves of the
  /// extents goes back to the pool. kInvalidArgument: it was not to save that, or not there.
  Status stored(const GroupEntry& group, const Rank& rank, const amem_v1_Saved& saved);

  /// The allocation's bytes are not needed in the pool any more.
  void give_back(Allocation& allocation);

  /// The rank has been sent a Save of this epoch.
  void sent(Rank& rank, Epoch epoch) { rank.saving.insert(epoch); }
  /// The rank has answered something of this epoch, and handles packets in order.
  void answered(Rank& rank, Epoch epoch, Work work);
  /// The rank's session has ended. Call before it leaves the tables.
  void rank_gone(const GroupEntry& group, Rank& rank);

 private:
  struct Ended {  // a session, perhaps not yet its process
    SharedFd process;
    EventLoop::WatchId watch = 0;
    Extents extents;
  };

  void free(const Extents& extents);
  void free_ended(std::uint64_t key);

  Node& node_;
  EventLoop& loop_;
  std::uint64_t next_key_ = 1;
  std::map<std::uint64_t, Ended> ended_;
};

}  // namespace amem
