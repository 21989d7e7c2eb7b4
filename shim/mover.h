// Mover: copies the bytes of allocations between a device and the broker's host pool.
//
// Owns this rank's view of the pool: each segment is imported and mapped once, and made accessible
// to a device when the rank begins to use that device, so that no pause pays for pinning. Copies
// run on streams of the mover's own, one per device. Service thread only.
#pragma once

#include <map>
#include <vector>

#include "common/driver.h"
#include "common/fd.h"
#include "shim/devices.h"
#include "shim/memory.h"
#include "shim/timings.h"

namespace amem::shim {

class Mover {
 public:
  Mover(const Driver& driver, Devices& devices, Memory& memory)
      : driver_(driver), devices_(devices), memory_(memory) {}

  /// A segment of the pool. Takes the descriptor; the pool's memory stays the broker's.
  Status add_segment(const amem_v1_PoolSegment& segment, Fd fd);
  /// From now on copies from and to this device may come: lets it reach every segment.
  Status prepare(int device);

  /// The program has reset this device: its stream went with the context.
  void forget(int device);

  /// Queues copies; errors come at once or with finish().
  Status save(const amem_v1_Copies& copies);
  Status load(const amem_v1_Copies& copies);
  /// Waits until all queued copies have ended. `bytes`: how many they were.
  Status finish(std::uint64_t& bytes);
  /// Of what finish() has waited for last: from the first copy queued to the end of the last.
  SteadyClock::duration copy_time() const { return copy_time_; }

 private:
  struct Segment {
    CUdeviceptr address = 0;
    std::uint64_t size = 0;
    bool memfd = false;
    std::vector<int> reachable_from;  // device ordinals that have been granted access
  };

  Status grant(Segment& segment, int device);
  Result<CUdeviceptr> pool_address(const amem_v1_Copy& copy, int device);
  Result<CUstream> stream(int device);
  Status copy(const amem_v1_Copy& copy, bool to_pool);

  const Driver& driver_;
  Devices& devices_;
  Memory& memory_;
  std::map<std::uint32_t, Segment> segments_;
  std::map<int, CUstream> streams_;
  std::vector<int> prepared_;
  std::uint64_t bytes_ = 0;
  SteadyClock::time_point copies_began_;  // no later than the first of bytes_
  SteadyClock::duration copy_time_{};
};

}  // namespace amem::shim
