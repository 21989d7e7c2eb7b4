// Collectives: what a communicator's kernel does, and the state of it that lives in device memory.
//
// One round, as in a real all-reduce over peer memory: say that this rank has arrived, spin until
// all have, read every rank's contribution and every peer's stamps, say that reading is done, spin
// until all have read, replace the own contribution and the own stamps, spin until all have. So a
// rank that is held before a round holds all others inside it, and memory that was lost, swapped or
// restored late shows as wrong values on the peers.
//
// The round number lives in device memory too: a captured launch can be replayed, and a stale
// restore shows.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/workload/base/pattern.h"

namespace amem::workload {

inline constexpr std::size_t kContributionWords = 256;

/// What a communicator's buffer holds; every rank has one and maps everybody's. Each flag has a
/// cache line.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): meant
struct CommunicatorBuffer {
  alignas(64) std::uint64_t round;       // rounds that ended
  alignas(64) std::uint64_t arrived;     // round this rank is in
  alignas(64) std::uint64_t done;        // round this rank has read everything of
  alignas(64) std::uint64_t stop;        // this rank wants the loop to end with the present round
  alignas(64) std::uint64_t loop_ended;  // number of the last loop that was ended
  alignas(4096) std::uint64_t words[kContributionWords];
};

/// What kernels tell the host. Plain memory of the process.
struct CollectiveReport {
  std::atomic<std::uint64_t> rounds{0};      // ended, as far as this process has seen
  std::atomic<std::uint64_t> mismatches{0};  // stamps of peers that were wrong
  std::atomic<std::uint64_t> first_bad_owner{0};
  std::atomic<std::uint64_t> first_bad_id{0};
  std::atomic<int> missing{-1};  // a peer that did not come in time; nothing runs any more
  std::atomic<bool> stop_requested{false};
  std::atomic<std::uint64_t> loop_ended{0};  // number of the last loop that was ended

  bool failed() const { return missing.load() >= 0; }
};

/// A stamped allocation where this rank sees it.
struct Stamped {
  std::uint64_t* words = nullptr;
  AllocationKey key;
};

/// All that a round needs. Immutable once a kernel was launched with it, and never freed before the
/// process ends: graphs remember it.
struct CollectivePlan {
  int rank = 0;
  unsigned communicator = 0;
  std::vector<CommunicatorBuffer*> buffers;  // by rank, the own one too
  std::vector<Stamped> own;
  std::vector<Stamped> peers;
  std::chrono::milliseconds timeout{30000};
  CollectiveReport* report = nullptr;
};

/// The simulated kernel: runs one round. Parameters: const CollectivePlan*, std::uint64_t loop (0:
/// not in a loop).
void CollectiveKernel(void** parameters);

}  // namespace amem::workload
