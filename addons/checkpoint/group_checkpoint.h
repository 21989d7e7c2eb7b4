// Checkpoints and restores all processes of a group, side by side.
//
// Both find out first what state each process is in, so that they go on from where another amemd,
// or a call that was cut off, has left them. For the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "addons/checkpoint/process_calls.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/operations/evictor.h"

namespace amem {

/// Locks all, then checkpoints all. If one fails, brings all back that it can and says which
/// process failed, at which call, and which process the driver has lost. Ends within `limit`.
/// `calls` outlives it.
Evictor::Calls checkpoint_all(ProcessCalls& calls, std::vector<EvictedProcess> targets,
                              Duration limit, Evictor::EvictDone done);
/// Restores all that are checkpointed, if there are any after `space` has answered that it may, in
/// whatever time; then unlocks all that are locked. Not OK: which process is not running, and why.
Evictor::Calls restore_all(ProcessCalls& calls, std::vector<EvictedProcess> targets, Duration limit,
                           const Evictor::MakeSpace& space, Evictor::Done done);
/// Of `limit`, what a restore with its space takes at the most.
Duration restore_time(Duration limit);

}  // namespace amem
