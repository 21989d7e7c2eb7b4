// LightRanks: many ranks of one group, played by one thread, that do nothing but answer: for
// measuring the broker. They hold no memory; descriptors are closed as they come.
//
// set_up() and answer() are for one thread at a time; stop() for any.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/packet.h"
#include "common/protocol.h"
#include "common/status.h"

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
  struct Owned {
    std::uint64_t id = 0;
    Token token{};
  };
  struct Rank {
    Fd socket;
    std::vector<Owned> owned;
  };

  Status join(Rank& rank, const Shape& shape, int number);
  Status create(Rank& rank, const Shape& shape, const DeviceUuid& device);
  Status redeem(Rank& rank, const Rank& owner);
  Status handle(Rank& rank, const Packet& packet);
  /// Sends requests ahead of their replies, a window at a time.
  template <class Fill, class Take>
  Status ask_many(Rank& rank, std::size_t count, Fill fill, Take take);

  std::vector<Rank> ranks_;
  std::uint64_t allocations_ = 0;
  std::uint64_t holds_ = 0;
  std::atomic<bool> stop_ = false;
};

}  // namespace amem::bench
