// Pins: memory that a device knows the physical addresses of, and that so stays where it is through
// a pause: for good, or until every registration of it has ended.
//
// Any thread. What a pause finds pinned it neither saves nor releases. So nothing becomes unpinned
// while the gate is shut: that waits until the gate is open again, and its caller does not.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "common/status.h"
#include "shim/gate/gate.h"
#include "shim/memory/brokered_memory.h"
#include "shim/session/session.h"

namespace amem::shim {

class Pins {
 public:
  Pins(Gate& gate, Session& session, BrokeredMemory& brokered)
      : gate_(gate), session_(session), brokered_(brokered) {}

  /// What one registration has pinned.
  struct Pinned {
    PinnedBy by;
    std::vector<std::uint64_t> ids;  // the broker's; none: the range is not brokered
  };

  /// Pins all allocations that are mapped in the range; waits for those on their way back.
  /// kFailedPrecondition: some of it is paused, nothing is pinned.
  /// REQUIRES: the caller is inside the gate.
  Result<Pinned> pin(CUdeviceptr address, std::size_t size, amem_v1_PinReason reason);
  /// What was pinned is so no more, as far as this registration goes.
  void unpin(Pinned pinned);

 private:
  void unpin_now(const Pinned& pinned);
  void unpin_late();

  Gate& gate_;
  Session& session_;
  BrokeredMemory& brokered_;
  std::atomic<std::uint64_t> next_{1};  // no registration has the number of another
  std::mutex mutex_;                    // guards what follows
  std::vector<Pinned> late_;            // unpinned while the gate was shut
};

}  // namespace amem::shim
