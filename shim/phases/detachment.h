// Detachment: this process as the driver's checkpoint needs it, for a deep pause: no work, no call
// in the driver, nothing mapped that the driver cannot put away. The rest of the shim knows only
// the state that follows from it (rank_state.h).
//
// Service thread only.
#pragma once

#include <utility>
#include <vector>

#include "common/driver.h"
#include "common/fd.h"
#include "common/status.h"
#include "shim/copies/pool_view.h"
#include "shim/driver/local_devices.h"
#include "shim/gate/gate.h"
#include "shim/memory/memory.h"
#include "shim/session/session.h"

namespace amem::shim {

class Detachment {
 public:
  Detachment(const Driver& driver, LocalDevices& devices, Gate& gate, Memory& memory,
             PoolView& pool)
      : driver_(driver), devices_(devices), gate_(gate), memory_(memory), pool_(pool) {}

  /// Afterwards the driver may put the process away, and nothing of the shim calls it before
  /// attach(). Takes 2 s at most. An error changes nothing, but segments that were unmapped before
  /// it stay so until the broker sends them again. REQUIRES: the gate is in the mode kFreesPass.
  Status detach();
  /// The driver makes calls again. Makes the frees that the program has made meanwhile, and leaves
  /// the gate in the mode kFreesPass. Nothing where detach() has not been called.
  void attach();

  /// Adds the segment to the pool, or keeps it for attach().
  void add(const amem_v1_PoolSegment& segment, Fd fd);
  /// Unmaps it, as PoolView does. kUnavailable: to do that takes the driver.
  Status unmap(std::uint32_t segment);
  /// The broker has ended, and the next one sends the segments again.
  void drop_segments() { segments_.clear(); }

 private:
  /// What the driver could not restore, or would wait for.
  Status obstacle();
  /// All work of this process has ended, and none of its contexts has failed.
  Status idle(std::chrono::steady_clock::time_point until);
  /// No call of the program is in the driver, and none gets there.
  Status go_away(std::chrono::steady_clock::time_point until);
  void add_now(const amem_v1_PoolSegment& segment, Fd fd);

  const Driver& driver_;
  LocalDevices& devices_;
  Gate& gate_;
  Memory& memory_;
  PoolView& pool_;
  std::vector<std::pair<amem_v1_PoolSegment, Fd>> segments_;  // to add one takes the driver
};

}  // namespace amem::shim
