// Contents: writes what memory must hold, and compares what it holds with that, byte for byte,
// through the driver's copies. For the communicators' own buffers the expectation comes from the
// model.
//
// Owns the models; the device's primary context must be current. One thread at
// a time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/workload/base/pattern.h"
#include "tests/workload/nccl/collective.h"
#include "tests/workload/program/ledger.h"

namespace amem::workload {

/// How far the communicator of an allocation has come.
struct Progress {
  std::uint64_t round = 0;
  bool interrupted = false;  // a round was given up: peers may be one behind or ahead

  std::uint64_t first(bool imported) const {
    return interrupted && imported && round > 0 ? round - 1 : round;
  }
  std::uint64_t last(bool imported) const { return interrupted && imported ? round + 1 : round; }
};

/// What a communicator's buffer holds before the first round.
CommunicatorBuffer InitialBuffer(const AllocationKey& key, unsigned communicator);

/// What a communicator's collectives must have computed. Remembers the last round it was asked for,
/// so that checking after a long loop costs only the rounds since.
class CollectiveModel {
 public:
  CollectiveModel(int ranks, unsigned communicator);

  /// A rank's contribution after `round` rounds. Rounds may only grow.
  const std::array<std::uint64_t, kContributionWords>& Words(int rank, std::uint64_t round);

 private:
  std::uint64_t round_ = 0;
  std::vector<std::array<std::uint64_t, kContributionWords>> words_;  // by rank
};

class Contents {
 public:
  /// `zeros`: percent of the blocks of 64 KiB that are zero, but for a stamp.
  Contents(int ranks, unsigned communicators, unsigned zeros);

  /// Writes the whole allocation, as it must be after `round` rounds.
  void Fill(const Mapping& mapping, std::uint64_t generation, std::uint64_t round) const;

  /// What is wrong with the mapping's bytes; nothing when every one is as it must be.
  std::optional<std::string> Verify(const Mapping& mapping, std::uint64_t generation,
                                    const Progress& progress);

  /// A hash of the mapping's bytes.
  std::uint64_t Checksum(const Mapping& mapping) const;

 private:
  using Chunk = std::vector<std::uint64_t>;

  std::uint64_t Word(std::uint64_t seed, std::size_t index) const;
  static bool StampFits(const Mapping& mapping, const Progress& progress,
                        const std::uint64_t* words);
  std::optional<std::string> VerifyCommunicator(const Mapping& mapping, const Progress& progress);

  const unsigned zeros_;
  std::vector<CollectiveModel> models_;  // by communicator
};

}  // namespace amem::workload
