// Creation: what a resume has still to bring back, and in which order: in slices that are small
// enough for the loop to stay responsive, so that ranks map and load one slice while the broker
// creates the next.
//
// Pure; the caller creates, and looks up what has become of an allocation since. Not synchronised;
// one GroupEntry owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/allocations.h"

namespace amem {

class Creation {
 public:
  struct Item {
    AllocationId id = 0;
    RankId keeper = 0;
    std::uint64_t size = 0;  // bytes

    friend bool operator==(const Item&, const Item&) = default;
  };

  /// Some milliseconds of driver calls, here and in the rank; one packet of descriptors.
  static constexpr std::size_t kSliceCount = 64;
  /// Some milliseconds of copying; the copies are to begin early.
  static constexpr std::uint64_t kSliceBytes = 256ULL << 20;

  Creation() = default;
  explicit Creation(const std::vector<Item>& items);

  /// The next slice, all of one keeper, in the order of `items`; empty when nothing is left. The
  /// keepers take turns, so that all of them work.
  std::vector<Item> next();
  bool done() const { return left_ == 0; }

 private:
  struct Queue {  // of one keeper
    std::vector<Item> items;
    std::size_t at = 0;
  };

  std::vector<Queue> queues_;
  std::size_t turn_ = 0;  // whose slice is next
  std::size_t left_ = 0;  // items
};

}  // namespace amem
