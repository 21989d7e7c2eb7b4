// DeepProof: whether deep pauses work on the devices of this node, found out with a throwaway
// process on each before the first is used.
//
// Two cycles: the driver checkpoints and restores the process, which must have everything as
// before. What has been proven stays so, and so does what the driver has refused: it does not
// change under a running amemd. Where the node was only busy, the next who asks tries again.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "common/protocol.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"
#include "daemon/checkpoint/process_calls.h"
#include "daemon/checkpoint/proof_target.h"

namespace amem {

class DeepProof {
 public:
  using Done = std::function<void(const Status&)>;
  /// Memory of the kind that this node's pool has; answers once, now or later.
  using MakePool = std::function<void(const DeviceUuid& device, Duration limit,
                                      std::function<void(Result<ProofPool>)> done)>;

  /// All of it outlives this object. `limit`: for all that is done on one device.
  DeepProof(EventLoop& loop, ProcessCalls& calls, ProofTargets& targets, Duration limit,
            MakePool make_pool);
  ~DeepProof();
  DeepProof(const DeepProof&) = delete;
  DeepProof& operator=(const DeepProof&) = delete;

  /// Nothing: prove() finds out. Not OK: as of prove(), and for good.
  std::optional<Status> verdict(const std::set<DeviceUuid>& devices) const;
  /// All devices side by side, each once, however many ask meanwhile. `done` is called once, later.
  /// Not OK, for people: kFailedPrecondition: deep pauses do not work here; else they could not be
  /// proven now.
  void prove(const std::set<DeviceUuid>& devices, Done done);
  /// Kills what runs. Nobody is told anything more.
  void shut();

 private:
  class Run;
  struct Waiter {
    std::set<DeviceUuid> missing;
    Status status;
    Done done;
  };

  void ended(const DeviceUuid& device, const Status& status, Duration took);

  EventLoop& loop_;
  ProcessCalls& calls_;
  ProofTargets& targets_;
  const Duration limit_;
  const MakePool make_pool_;
  std::map<DeviceUuid, Status> verdicts_;
  std::map<DeviceUuid, std::shared_ptr<Run>> runs_;
  std::vector<Waiter> waiters_;
};

}  // namespace amem
