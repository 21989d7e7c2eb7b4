// LightRanks: many ranks of one group, played by one thread, that do nothing but answer: for
// measuring the broker. They hold no memory; descriptors are closed as they come.
//
// set_up() and answer() are for one thread at a time; stop() for any.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "common/protocol.h"
#include "common/status.h"
#include "tests/world/rank_process.h"

namespace amem::bench {

class LightRanks {
 public:
  struct Shape {
    std::string socket;
    std::string group;
    int ranks = 1;
    int allocations = 10;    // of each rank, of one granule each
    std::uint64_t size = 0;  // of each, bytes
    bool shared = true;      // every other one is held by the next rank too
    std::vector<DeviceUuid> devices;
  };

  /// Joins and allocates.
  Status set_up(const Shape& shape);
  /// Answers the broker until stop(), or an error.
  Status answer();
  void stop() { stop_ = true; }

  /// Allocations of all ranks, and how many times a rank holds one.
  std::uint64_t allocations() const { return allocations_; }
  std::uint64_t holds() const { return holds_; }

 private:
  /// Sends requests ahead of their replies, a window at a time.
  Status ask_many(world::RankProcess& rank, std::size_t count,
                  const std::function<void(std::size_t)>& ask);

  world::Truths truths_;
  std::deque<world::RankProcess> ranks_;
  std::size_t answered_ = 0;
  Status refused_;
  std::uint64_t allocations_ = 0;
  std::uint64_t holds_ = 0;
  std::atomic<bool> stop_ = false;
};

}  // namespace amem::bench
