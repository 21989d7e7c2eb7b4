// Retained: copies of loaded bytes that an owner's part of the pool still has.
//
// A pause does not copy bytes that equal their retained copy. Until then nobody relies on the copy:
// whoever needs the space takes it, the oldest copy first. So the space counts as free.
//
// Pure bookkeeping. Not synchronised: the broker's loop owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "daemon/base/ids.h"
#include "daemon/memory/extents.h"

namespace amem {

/// What pauses do to find bytes that did not change (pool.retain).
enum class Retain : std::uint8_t {
  kOff,   // nothing: everything is copied
  kAuto,  // what the tag's last pauses have found says (daemon/node/changes.h)
  kAlways
};

/// Of one allocation: all of its bytes, as they are, as a pause has saved them.
struct RetainedCopy {
  Extents extents;
  RankId saver = 0;           // has the hashes of its blocks
  std::uint64_t attempt = 0;  // the pause: its Epoch::attempt
};

class Retained {
 public:
  /// The newest. REQUIRES: nothing is retained of the allocation.
  void add(AllocationId id, RetainedCopy copy);
  /// Null: nothing is.
  const RetainedCopy* find(AllocationId id) const;
  /// It is retained no longer: the extents are the caller's. Nothing: it was not.
  std::optional<RetainedCopy> take(AllocationId id);
  /// As take(), of the one that was added before all others.
  std::optional<RetainedCopy> take_oldest();
  /// Of those that have space in such a segment.
  std::optional<RetainedCopy> take_oldest(const std::function<bool(std::uint32_t)>& segment);

  void each(const std::function<void(const RetainedCopy&)>& copy) const {
    for (const auto& [id, entry] : copies_) copy(entry.copy);
  }

  /// Bytes of the pool.
  std::uint64_t bytes() const { return bytes_; }
  /// Of this allocation alone.
  std::uint64_t bytes(AllocationId id) const;

 private:
  struct Entry {
    RetainedCopy copy;
    std::uint64_t number = 0;  // in by_age_
  };

  std::map<AllocationId, Entry> copies_;
  std::map<std::uint64_t, AllocationId> by_age_;  // oldest first
  std::uint64_t next_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace amem
