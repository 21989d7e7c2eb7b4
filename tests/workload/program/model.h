// CollectiveModel: what a communicator's collectives must have computed, on the host.
//
// Remembers the last round it was asked for, so that checking after a long loop costs only the
// rounds since. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/workload/nccl/collective.h"

namespace amem::workload {

class CollectiveModel {
 public:
  CollectiveModel(int ranks, unsigned communicator);

  /// A rank's contribution after `round` rounds. Rounds may only grow.
  const std::array<std::uint64_t, kContributionWords>& Words(int rank, std::uint64_t round);

 private:
  std::uint64_t round_ = 0;
  std::vector<std::array<std::uint64_t, kContributionWords>> words_;  // by rank
};

}  // namespace amem::workload
