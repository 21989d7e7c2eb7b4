// Checkpoints and restores all processes of a group, side by side.
//
// Both find out first what state each process is in, so that they go on from where another amemd,
// or a call that was cut off, has left them. For the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/checkpoint/process_calls.h"

namespace amem {

struct CheckpointTarget {
  pid_t pid = 0;
  std::string label;  // for messages: "rank 3 (pid 123)"
  /// It has not ended: else its pid may be another process's by now, and it is left out.
  std::function<bool()> lives = [] { return true; };
};

using CheckpointDone = std::function<void(const Status&)>;

/// `all_run`: every process is known to run.
using CheckpointedDone = std::function<void(const Status&, bool all_run)>;
/// Lives while calls are under way, or are to come. Only one at a time for a process.
using CheckpointCalls = std::weak_ptr<const void>;

/// Locks all, then checkpoints all. If one fails, brings all back that it can and says which
/// process failed, at which call, and which process the driver has lost. Ends within `limit`.
/// `calls` outlives it.
CheckpointCalls checkpoint_all(ProcessCalls& calls, std::vector<CheckpointTarget> targets,
                               Duration limit, CheckpointedDone done);
/// What a restore has to itself until it has answered; or why it may not begin.
using RestoreHold = std::shared_ptr<const void>;
using MakeSpace = std::function<void(std::function<void(const Result<RestoreHold>&)>)>;

/// Restores all that are checkpointed, if there are any after `space` has answered that it may, in
/// whatever time; then unlocks all that are locked. Not OK: which process is not running, and why.
CheckpointCalls restore_all(ProcessCalls& calls, std::vector<CheckpointTarget> targets,
                            Duration limit, const MakeSpace& space, CheckpointDone done);
/// Of `limit`, what a restore with its space takes at the most.
Duration restore_time(Duration limit);

}  // namespace amem
