// DeepProof: whether deep pauses work on this node, found out with a throwaway process before the
// first is used: one for each set of devices that a rank's process sees, as the driver treats
// processes differently by that.
//
// Two cycles, as far as there is time: the driver checkpoints and restores the process, which must
// have everything as before. What has been proven stays so, and what the driver has refused stays
// refused, until amemd ends or somebody exchanges the driver or the node's NCCL. Where the node was
// only busy, the next who asks tries again. A proof does not guarantee anything: the process is not
// a rank's.
//
// For the loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "addons/checkpoint/process_calls.h"
#include "addons/checkpoint/proof_target.h"
#include "common/protocol.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/event_loop.h"

namespace amem {

class DeepProof {
 public:
  using Sets = Evictor::Sets;
  using Done = std::function<void(const Status&)>;
  /// All of it outlives this object. `limit`: for all that is done to prove one set.
  DeepProof(EventLoop& loop, ProcessCalls& calls, ProofTargets& targets, Duration limit,
            MakeProofPool make_pool);
  ~DeepProof();
  DeepProof(const DeepProof&) = delete;
  DeepProof& operator=(const DeepProof&) = delete;

  /// Nothing: prove() finds out. Not OK: as of prove(), and for good.
  std::optional<Status> verdict(const Sets& sets) const;
  /// All sets side by side, each once, however many ask meanwhile. `done` is called once, later.
  /// Not OK, for people: kFailedPrecondition: deep pauses do not work here; else they could not be
  /// proven now.
  void prove(const Sets& sets, Done done);
  /// Returns how far the proof goes, for people: "with NCCL 2.27.3", "without NCCL, because ...".
  std::string terms(const Sets& sets) const;
  /// Kills what runs. Nobody is told anything more.
  void shut();

 private:
  class Run;
  struct Verdict {
    Status status;
    ProofBasis basis;
    std::vector<std::string> marks;  // of the basis's files, as they were
  };
  struct Waiter {
    Sets missing;
    Status status;
    Done done;
  };

  /// Null: there is none, or it was of other files.
  const Verdict* find(const VisibleDevices& devices) const;
  void ended(const VisibleDevices& devices, const Status& status, const ProofBasis& basis,
             const std::string& took);

  EventLoop& loop_;
  ProcessCalls& calls_;
  ProofTargets& targets_;
  const Duration limit_;
  const MakeProofPool make_pool_;
  std::map<VisibleDevices, Verdict> verdicts_;
  std::map<VisibleDevices, std::shared_ptr<Run>> runs_;
  std::vector<Waiter> waiters_;
};

}  // namespace amem
