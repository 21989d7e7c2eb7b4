// Creation: what a resume has still to bring back, and in which order: in slices that are small
// enough for the loop to stay responsive, so that ranks map and load one slice while the broker
// creates the next.
//
// In a swap, what does not fit in the headroom yet waits, and what does fit goes before it: so
// creation stalls only when nothing fits, and when the limit is lifted everything does.
//
// Pure; the caller creates, and looks up what has become of an allocation since. Not synchronised;
// one GroupEntry owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/protocol.h"
#include "daemon/base/ids.h"
#include "daemon/transactions/headroom.h"

namespace amem {

class Creation {
 public:
  struct Item {
    AllocationId id = 0;
    RankId keeper = 0;
    DeviceUuid device;
    std::uint64_t size = 0;    // bytes to load
    std::uint64_t needed = 0;  // bytes of the device to be taken: 0 when it never left

    friend bool operator==(const Item&, const Item&) = default;
  };

  /// Some milliseconds of driver calls, here and in the rank; one packet of descriptors.
  static constexpr std::size_t kSliceCount = 64;
  /// Some milliseconds of copying; the copies are to begin early.
  static constexpr std::uint64_t kSliceBytes = 256ULL << 20;

  Creation() = default;
  explicit Creation(const std::vector<Item>& items);

  /// The next slice, all of one keeper, in the order of `items` but for what does not fit; takes
  /// its need from `headroom`. Empty: nothing is left, or nothing of it fits now. The keepers take
  /// turns, so that all of them work.
  std::vector<Item> next(Headroom& headroom);
  /// It could not be created now, and comes again, before others of its keeper.
  void put_back(const Item& item);
  bool done() const { return left_ == 0; }

 private:
  struct Queue {
    RankId keeper;
    std::deque<Item> items;
  };
  static std::vector<Item> slice_of(Queue& queue, Headroom& headroom);

  std::vector<Queue> queues_;
  std::size_t turn_ = 0;  // whose slice is next
  std::size_t left_ = 0;  // items
};

}  // namespace amem
