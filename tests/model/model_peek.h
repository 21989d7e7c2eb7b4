// ModelPeek: what state the machines of daemon/phases and daemon/fleet are in. An explorer comes
// back to a state many times, and must know it again; the machines' own interfaces have no use for
// that.
#pragma once

#include "daemon/fleet/conductor.h"
#include "daemon/fleet/participant.h"
#include "daemon/phases/cut.h"
#include "tests/world/digest.h"

namespace amem {

class ModelPeek {
 public:
  /// With times as they are from `now` on.
  static void add(const Cut& cut, Time now, world::Digest& digest);
  static void add(const Conductor& conductor, world::Digest& digest);
  static void add(const Participant& participant, world::Digest& digest);
};

}  // namespace amem
