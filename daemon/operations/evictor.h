// Evictor: frees what stays of a group's processes on their devices after a pause, such as contexts
// and code, and restores it. A deep pause ends with it, and a resume of a deep group begins with
// it. It knows processes by their pids, and nothing of groups.
//
// This is the seam of the add-on that has the driver checkpoint the processes (addons/checkpoint).
//
// For the loop's thread. Each `done` is called once, and not after the end of the Evictor.
// prove() calls it in a later turn of the loop. evict() and restore() call it at once if there is
// no process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/place.h"
#include "common/protocol.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"

namespace amem {

struct EvictedProcess {
  pid_t pid = 0;
  std::string label;  // for messages: "rank 3 (pid 123)"
  /// It has not ended: else its pid may be another process's by now, and it is left out.
  std::function<bool()> lives = [] { return true; };
};

/// What a restore has to itself until it has answered.
using RestoreClaim = std::shared_ptr<const void>;

class Evictor {
 public:
  /// What the processes of a group see, each set once.
  using Sets = std::set<VisibleDevices>;
  using Done = std::function<void(const Status&)>;
  /// `all_run`: every process is known to run.
  using EvictDone = std::function<void(const Status&, bool all_run)>;
  /// Lives while calls for these processes are under way, or are to come. REQUIRES: one at a time
  /// for a process.
  using Calls = std::weak_ptr<const void>;
  /// Asks for the space that a restore needs. The answer is a claim, or why it may not begin.
  using MakeSpace = std::function<void(std::function<void(const Result<RestoreClaim>&)>)>;

  virtual ~Evictor() = default;

  // ---- whether it works on this node ----
  /// Returns nothing while only prove() can find out. Not OK: as of prove(), and for good.
  virtual std::optional<Status> verdict(const Sets& sets) const = 0;
  /// Finds out for each set, without touching a rank. Not OK, for people: kFailedPrecondition:
  /// eviction does not work here; else it could not be proven now.
  virtual void prove(const Sets& sets, Done done) = 0;
  /// Returns what has been proven, for people: "with NCCL 2.27.3".
  virtual std::string terms(const Sets& sets) const = 0;

  // ---- processes ----
  /// All or none: if one fails, all run again that can, and the status says which process failed,
  /// at which call, and which process the driver has lost. Ends within `limit`.
  virtual Calls evict(std::vector<EvictedProcess> processes, Duration limit, EvictDone done) = 0;
  /// From whatever state they are in. Asks for `space` if there is anything to restore, and waits
  /// for the answer in whatever time it takes. Not OK: which process is not running, and why.
  virtual Calls restore(std::vector<EvictedProcess> processes, Duration limit,
                        const MakeSpace& space, Done done) = 0;
  /// Returns how much of `limit` a restore takes at the most once it has its space.
  virtual Duration restore_time(Duration limit) const = 0;

  /// Ends what is under way. No `done` is called any more.
  virtual void shut() = 0;
};

/// The pool as a process for a proof sees it.
struct ProofPool {
  std::optional<Place> place = {};  // nothing: none
  std::uint64_t bytes = 0;
  SharedFd fd = {};  // of kHostNuma: memory that nobody else uses
};
/// Makes memory of the kind that this node's pool has, for a process that sees these devices.
/// Answers once, now or later.
using MakeProofPool = std::function<void(const VisibleDevices& devices, Duration limit,
                                         std::function<void(Result<ProofPool>)> done)>;

/// `limit`: for all that is done to prove one set. The loop outlives what it makes.
using MakeEvictor =
    std::function<std::unique_ptr<Evictor>(EventLoop&, Duration limit, MakeProofPool)>;

/// amemd is linked with the add-on, or with without_checkpoint.cpp. Null: there is no Evictor.
MakeEvictor make_evictor();
/// Returns what stands in where there is none: it refuses all of it, and says how to get one.
std::unique_ptr<Evictor> no_evictor(EventLoop& loop);

}  // namespace amem
