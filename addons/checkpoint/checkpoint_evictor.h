// CheckpointEvictor: an Evictor that has the CUDA driver checkpoint the processes.
//
// For the loop's thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "addons/checkpoint/deep_proof.h"
#include "addons/checkpoint/group_checkpoint.h"
#include "addons/checkpoint/process_calls.h"
#include "addons/checkpoint/proof_target.h"
#include "daemon/operations/evictor.h"

namespace amem {

class CheckpointEvictor : public Evictor {
 public:
  /// All of it outlives this object. `limit`: for all that is done to prove one set.
  CheckpointEvictor(EventLoop& loop, ProcessCalls& calls, ProofTargets& targets, Duration limit,
                    MakeProofPool make_pool)
      : calls_(calls), proof_(loop, calls, targets, limit, std::move(make_pool)) {}

  std::optional<Status> verdict(const Sets& sets) const override { return proof_.verdict(sets); }
  void prove(const Sets& sets, Done done) override { proof_.prove(sets, std::move(done)); }
  std::string terms(const Sets& sets) const override { return proof_.terms(sets); }
  Calls evict(std::vector<EvictedProcess> processes, Duration limit, EvictDone done) override {
    return checkpoint_all(calls_, std::move(processes), limit, std::move(done));
  }
  Calls restore(std::vector<EvictedProcess> processes, Duration limit, const MakeSpace& space,
                Done done) override {
    return restore_all(calls_, std::move(processes), limit, space, std::move(done));
  }
  Duration restore_time(Duration limit) const override { return amem::restore_time(limit); }
  void shut() override { proof_.shut(); }

 private:
  ProcessCalls& calls_;
  DeepProof proof_;
};

}  // namespace amem
