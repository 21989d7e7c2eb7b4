// SegmentCache: memory that the program has freed and is likely to want again at once.
//
// To make an allocation and to free it takes the driver and the broker a dozen calls. Each call
// queues with those of the device's other processes. Programs that free often allocate the same
// again. So a little is kept for a moment. Pure bookkeeping, no lock: Heap owns one and guards it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "shim/base/region.h"
#include "shim/memory/allocation_table.h"

namespace amem::shim {

class SegmentCache {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Bytes in all. More is none to the program, which sees that so much memory is not free.
  static constexpr std::uint64_t kMost = 64ULL << 20;

  /// What is the same of segments that can stand for each other.
  struct Kind {
    int device = 0;
    std::uint64_t size = 0;  // bytes
    Label label;
    friend auto operator<=>(const Kind&, const Kind&) = default;
  };

  /// Keeps a segment. Answers those for which there is no space then, which are the caller's again:
  /// the oldest, or this one alone where it is larger than all that may be kept.
  std::vector<Address> add(const Kind& kind, Address address, Time now);
  /// The one of this kind that was kept last, of those that are `usable`; it is the caller's.
  std::optional<Address> take(const Kind& kind, const std::function<bool(Address address)>& usable);
  /// Takes the `usable` ones of those that were kept at this time or before; they are the caller's.
  std::vector<Address> take_older(Time time, const std::function<bool(Address address)>& usable);
  /// When the oldest was kept; nothing: there is none.
  std::optional<Time> oldest() const;

 private:
  struct Entry {
    Kind kind;
    Address address = 0;
    Time since;
  };

  std::vector<Entry> entries_;  // the oldest first
  std::uint64_t bytes_ = 0;
};

}  // namespace amem::shim
