// Control: what the supervisor and its ranks share: a barrier, NCCL's unique ids, each rank's state
// and results.
//
// Lives in anonymous shared memory made before the ranks are forked. Fields that two processes or
// threads touch at one time are atomic; a rank's results are written by that rank alone and read by
// others only after a barrier or after it ended.
#pragma once

#include <nccl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace gpu_test {

inline constexpr int kSkipped = 77;  // exit status: too few GPUs, or a library is missing
inline constexpr int kMaxRanks = 16;
inline constexpr int kMaxComms = 64;
inline constexpr int kMaxCycles = 512;

/// What is timed: an all-reduce of so many bytes, or, where there are none, an empty kernel.
/// Captured: in a CUDA graph, so that nothing of the host's, which varies far more, is in its time.
struct Timed {
  std::size_t bytes;
  bool captured;
};
inline constexpr std::array<Timed, 7> kTimed = {{{0, true},
                                                 {8, false},
                                                 {8, true},
                                                 {1024, false},
                                                 {1024, true},
                                                 {64U << 20, false},
                                                 {256U << 20, false}}};

/// Device memory in use, in bytes by the driver's figure, everybody's on that device.
struct MemoryFigures {
  std::uint64_t context_only = 0;  // before the first communicator
  std::uint64_t after_destroy =
      0;  // communicators came and went: contexts and NCCL's loaded kernels
  std::uint64_t running = 0;
  std::uint64_t brokered_running = 0;  // the broker's figure for the device at that time
  std::uint64_t paused_min = UINT64_MAX;
  std::uint64_t paused_max = 0;
  std::uint64_t freed_min = UINT64_MAX;  // running minus paused, driver's figure
};

struct RankSlot {
  // A string literal: the ranks are forks of the supervisor, so it means the same in both.
  std::atomic<const char*> doing{"starting"};
  std::atomic<int> cycle{0};
  std::atomic<int> comm{-1};
  std::atomic<std::uint64_t> beats{0};  // any progress
  std::atomic<std::uint64_t> iterations{0};
  std::atomic<std::uint64_t> verified{0};            // collectives whose every element was compared
  std::array<std::uint32_t, kMaxCycles> pause_us{};  // 0: this rank did not ask
  std::array<std::uint32_t, kMaxCycles> resume_us{};
  std::uint64_t comm_init_us = 0;
  std::uint64_t startup_us = 0;  // to the first verified collective of each communicator
  // Of one of each of kTimed: before the first cycle and after each.
  std::array<std::array<double, kTimed.size()>, kMaxCycles + 1> timed_us{};
  MemoryFigures memory;
};

class Control {
 public:
  /// Maps one; lives until the process ends. Null when there is no memory for it.
  static Control* create();

  /// Waits until `parties` have called it. One caller per crew.
  void barrier(int parties);

  std::array<ncclUniqueId, kMaxComms> ids{};
  std::array<RankSlot, kMaxRanks> ranks;

 private:
  std::atomic<int> arrived_{0};
  std::atomic<std::uint32_t> generation_{0};
};

/// Names the calling thread's rank in messages and records what it is doing.
void set_current(RankSlot* slot, int rank);
void doing(const char* literal, int comm = -1);

/// Prints "rank R, cycle C, <what it was doing>: text" and ends the process with status 1: a rank
/// has nothing to clean up, its supervisor ends the others.
[[noreturn]] void fail(const std::string& text);

/// What this gives, as the exit status of a process of its own; -1 when that had none. For what
/// uses CUDA, of which a fork has no use once it has been initialised.
int in_child(const std::function<int()>& work);

}  // namespace gpu_test
