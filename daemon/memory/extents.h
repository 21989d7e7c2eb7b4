// ExtentAllocator: who uses which bytes of an owner's part of the host pool.
//
// It is a list of segments. Each keeps its number. Space is handed out in whole chunks;
// what one request gets may lie in several pieces, so space never goes unusable by fragmentation
// and a batch fails only when there really are too few chunks left. Holds no memory itself.
//
// Not synchronised: the broker's loop owns it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/status.h"

namespace amem {

struct Extent {
  std::uint32_t segment = 0;
  std::uint64_t offset = 0;  // in the segment, a multiple of the chunk
  std::uint64_t length = 0;  // a multiple of the chunk

  friend bool operator==(const Extent&, const Extent&) = default;
};

using Extents = std::vector<Extent>;

inline std::uint64_t bytes_of(const Extents& extents) {
  std::uint64_t bytes = 0;
  for (const Extent& extent : extents) bytes += extent.length;
  return bytes;
}

/// All segments of the pool, by index, those to be used first at the front.
using SegmentOrder = std::vector<std::uint32_t>;

class ExtentAllocator {
 public:
  struct SpaceWanted {
    std::uint64_t size = 0;  // rounded up to whole chunks; not 0
    std::size_t order = 0;   // which of the orders
  };

  /// REQUIRES: chunk > 0.
  explicit ExtentAllocator(std::uint64_t chunk) : chunk_(chunk) {}

  /// Adds space for use and returns the segment's index, counted from 0. What does not fill a
  /// chunk at its end is not used.
  std::uint32_t add_segment(std::uint64_t size);

  /// The segment's space cannot be used from now on. REQUIRES: none of it is in use.
  void withdraw(std::uint32_t segment);
  /// One that was withdrawn can be used again, with this size.
  void restore(std::uint32_t segment, std::uint64_t size);

  /// One list of extents per request, in order; each list covers its request from the first byte
  /// on. All or nothing: kResourceExhausted names need and free bytes, and nothing has changed.
  /// REQUIRES: every order names every segment. None at all: by index.
  Result<std::vector<Extents>> take(const std::vector<SpaceWanted>& requests,
                                    std::vector<SegmentOrder> orders = {});

  /// A free run in the first segment of the order that has one, which is not taken yet: the first
  /// that has `size` bytes, else the longest. Nothing: no segment has any.
  std::optional<Extent> find_run(const SegmentOrder& order, std::uint64_t size) const;
  /// Takes the beginning of such a run. REQUIRES: whole chunks, all of them free.
  void take_run(const Extent& extent);

  /// Takes what was handed out before a restart. kDataLoss: some of it is not free, or was never
  /// handed out; nothing has changed.
  Status take_again(const Extents& extents);

  /// Frees what take() handed out, whole or in chunk-sized parts. kInternal: some of it is not in
  /// use (a double free) or was never handed out; nothing has changed.
  Status give_back(const Extents& extents);

  std::uint64_t chunk() const { return chunk_; }
  std::uint64_t total() const { return total_; }
  std::uint64_t used() const { return total_ - free_; }
  std::uint64_t available() const { return free_; }
  /// In one segment.
  std::uint64_t available(std::uint32_t segment) const;
  /// Usable bytes of one segment.
  std::uint64_t size(std::uint32_t segment) const { return segments_[segment].size; }

 private:
  using FreeList = std::map<std::uint64_t, std::uint64_t>;  // offset → length, never adjacent

  struct Segment {
    std::uint64_t size = 0;
    FreeList free;
  };

  std::uint64_t take_from(std::uint32_t index, std::uint64_t need, Extents& out);
  bool in_use(const Extent& extent) const;
  void insert(const Extent& extent);

  std::uint64_t chunk_;
  std::uint64_t total_ = 0;
  std::uint64_t free_ = 0;
  std::vector<Segment> segments_;
};

}  // namespace amem
