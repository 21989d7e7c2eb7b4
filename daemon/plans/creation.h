// Creation: what a resume has still to bring back, and in which order: in slices that are small
// enough for the loop to stay responsive, so that ranks map and load one slice while the broker
// creates the next.
//
// In a swap, what cannot come yet waits, and what can goes before it: so creation stalls only when
// nothing can come.
//
// Pure; the caller creates, and looks up what has become of an allocation since. Not synchronised;
// one GroupEntry owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "common/protocol.h"
#include "daemon/base/ids.h"

namespace amem {

class Creation {
 public:
  struct Item {
    AllocationId id = 0;
    RankId keeper = 0;
    DeviceUuid device;
    std::uint64_t copied = 0;  // bytes to load from the pool; 0: it is cleared, or has stayed
    std::uint64_t needed = 0;  // bytes of the device to be taken: 0 when it never left

    friend bool operator==(const Item&, const Item&) = default;
  };

  /// A few milliseconds of driver calls, here and in the rank; one packet of descriptors.
  static constexpr std::size_t kSliceCount = 64;
  /// A few milliseconds of copying; the copies must begin early.
  static constexpr std::uint64_t kSliceCopied = 256ULL << 20;
  /// A few milliseconds of the driver's; everything on the node waits for them.
  static constexpr std::uint64_t kSliceMade = 4ULL << 30;

  Creation() = default;
  explicit Creation(const std::vector<Item>& items);

  /// Whether there is memory for an item now. True takes that.
  using Takes = std::function<bool(const Item&)>;
  /// Returns the next slice, all of one keeper, in the order of `items` without what cannot come
  /// now. Empty: nothing is left, or nothing of it can come. The keepers take turns, so that all of
  /// them work.
  std::vector<Item> next(const Takes& takes);
  /// It could not be created now, and comes again, before others of its keeper. REQUIRES: next()
  /// has returned it.
  void put_back(const Item& item);
  bool done() const { return left_ == 0; }

 private:
  struct Queue {
    RankId keeper;
    std::deque<Item> items;
  };
  static std::vector<Item> slice_of(Queue& queue, const Takes& takes);

  std::vector<Queue> queues_;
  std::size_t turn_ = 0;  // whose slice is next
  std::size_t left_ = 0;  // items
};

}  // namespace amem
