// BlockMap: which blocks of an allocation are not zero, as its keeper has found, and what follows
// from that for any part of it. Measurement: the maps of all that a pause has had looked at.
//
// Pure. Not synchronised; one PauseOperation owns a Measurement.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/sparse.h"
#include "daemon/base/ids.h"

namespace amem {

class BlockMap {
 public:
  /// REQUIRES: size > 0.
  explicit BlockMap(std::uint64_t size) : size_(size) {}

  /// Appends a mask for each group of blocks (common/sparse.h). Returns false if they would go
  /// behind the end; then nothing has changed.
  bool add(std::span<const std::uint32_t> masks);
  /// Groups that are known.
  std::uint64_t known() const { return masks_.size(); }
  bool complete() const { return known() == sparse::groups(size_); }

  std::uint64_t size() const { return size_; }
  /// Returns the content of the bytes [offset, offset + length). REQUIRES: complete; length > 0;
  /// both ends are borders of blocks, or the allocation's.
  sparse::Content content(std::uint64_t offset, std::uint64_t length) const;

 private:
  /// Blocks that are not zero, in front of this one.
  std::uint64_t not_zero_before(std::uint64_t block) const;

  std::uint64_t size_;
  std::vector<std::uint32_t> masks_;
  std::vector<std::uint64_t> before_;  // blocks that are not zero, in front of each group
};

class Measurement {
 public:
  /// The keeper is asked to look at it.
  void ask(AllocationId id, RankId keeper, std::uint64_t size);
  /// The rank reports the groups from `first` on. Returns false if it was not asked for that.
  bool told(RankId rank, AllocationId id, std::uint64_t first,
            std::span<const std::uint32_t> masks);
  /// Null: nobody has looked at all of it.
  const BlockMap* blocks(AllocationId id) const;
  /// Bytes that ranks were asked to look at, and have not.
  std::uint64_t not_seen() const;

 private:
  struct Asked {
    RankId keeper;
    BlockMap blocks;
  };
  std::map<AllocationId, Asked> asked_;
};

}  // namespace amem
