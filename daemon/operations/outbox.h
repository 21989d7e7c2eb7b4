// Outbox: what the broker sends to its ranks in the course of operations, in packets of the sizes
// that the protocol has.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <chrono>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/memory/allocations.h"
#include "daemon/node/node.h"
#include "daemon/owners/account.h"
#include "daemon/plans/plan.h"
#include "daemon/sessions/messages.h"
#include "daemon/sessions/session_server.h"

namespace amem {

/// When to look for device memory again. A Free that was sent before may be read late, and ranks
/// keep a little of what their programs have freed until they hear of trim().
inline constexpr Duration kSpaceRetryDelays[] = {
    std::chrono::milliseconds(5), std::chrono::milliseconds(20), std::chrono::milliseconds(50)};

class Outbox {
 public:
  /// `host_memory`: the device to which host memory of the driver's belongs here.
  Outbox(Node& node, SessionServer& sessions, const DeviceUuid& host_memory)
      : node_(node), sessions_(sessions), host_memory_(host_memory) {}

  /// A rank that has gone meanwhile gets nothing.
  void send(RankId rank, const Message& message, std::vector<SharedFd> fds = {});
  void send_all(const std::vector<RankId>& ranks, const Message& message);
  /// Lets the rank reach these segments of the pool.
  void give_segments(RankId rank, const std::vector<std::uint32_t>& segments);
  /// Lets it reach as much of the pool as it may have to save.
  void extend_reach(RankId rank);
  /// All of them; the rank answers, also where there are none.
  void send_measure(RankId rank, Epoch epoch, const std::vector<MeasureRange>& ranges);
  /// After the segments that the rank does not reach yet. `last`: with nothing to follow, so that
  /// the rank answers; then a packet goes in any case.
  void send_copies(RankId rank, CopyKind kind, Epoch epoch, const std::vector<CopyRange>& copies,
                   bool last);
  /// In the same way.
  void send_maps(RankId rank, Epoch epoch, const std::vector<const Allocation*>& maps, bool last);
  /// Asks the rank to make anew what it has made; the answer has the number.
  void send_make(RankId rank, Epoch epoch, std::uint64_t number,
                 const std::vector<AllocationId>& ids);
  /// Ranks are to free what they keep for later, since the owner's lack memory: the owner's own,
  /// and now and then, unless it lacks a quota, all.
  void trim(Account& owner, bool only_its);
  /// A Release of these alone.
  void send_release(RankId rank, Epoch epoch, const std::vector<AllocationId>& ids,
                    bool more_waves);

 private:
  Node& node_;
  SessionServer& sessions_;
  const DeviceUuid host_memory_;
};

}  // namespace amem
