// BlockHashes: the hashes of what this process's saves have put into the pool, by which the next
// save finds out what has changed.
//
// Hashes are of one save: the broker says which save's bytes are still at a place, and hashes of
// any other count for nothing. They go before the first byte at their place is overwritten, and new
// ones come when all copies have ended. Plain bookkeeping; service thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "common/block_hash.h"

namespace amem::shim {

/// A range of an allocation, and where it lies in the pool.
struct SavedPlace {
  std::uint64_t id = 0;
  std::uint64_t offset = 0;  // in the allocation
  std::uint64_t length = 0;
  std::uint32_t segment = 0;
  std::uint64_t segment_offset = 0;

  friend bool operator==(const SavedPlace&, const SavedPlace&) = default;
};

/// Bytes of a piece, from `offset` on.
struct ByteRun {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  friend bool operator==(const ByteRun&, const ByteRun&) = default;
};

/// Returns the changed bytes of a piece, in order, in as few runs as possible. REQUIRES: both have
/// a hash of each block of the piece.
std::vector<ByteRun> changed(const std::vector<block_hash::Hash>& before,
                             const std::vector<block_hash::Hash>& now, std::uint64_t length);

/// The blocks of the runs: a mask for each group of the piece (sparse::Entry::mask). REQUIRES: runs
/// as changed() makes them.
std::vector<std::uint32_t> masks_of(std::span<const ByteRun> runs, std::uint64_t length);

class BlockHashes {
 public:
  using Hashes = std::vector<block_hash::Hash>;

  /// Returns the hashes of what the save of this epoch has put at the place. Null: they are not
  /// known.
  const Hashes* find(const SavedPlace& place, std::uint64_t epoch) const;
  /// Returns the hashes of any save. Null: there are none.
  const Hashes* of(const SavedPlace& place) const;
  /// The caller may overwrite what is at this part of the allocation's place from now on.
  void drop(std::uint64_t id, std::uint64_t offset);
  /// The save of this epoch has put there what has these hashes. Those of other saves of the
  /// allocation go. REQUIRES: epoch > 0.
  void set(const SavedPlace& place, std::uint64_t epoch, Hashes hashes);
  /// Drops those of allocations that the process no longer has.
  void drop_others(const std::function<bool(std::uint64_t id)>& has);
  void clear() { allocations_.clear(); }

 private:
  struct Of {
    SavedPlace place;
    Hashes hashes;
  };
  struct Allocation {
    std::uint64_t epoch = 0;
    std::map<std::uint64_t, Of> parts;  // by offset
  };

  std::map<std::uint64_t, Allocation> allocations_;  // by id
};

}  // namespace amem::shim
