// SmallBlocks: hands out blocks of chunks to allocations too small for physical memory of their
// own, which comes in 2 MiB.
//
// Pure bookkeeping over addresses, no driver calls, no lock: Heap and Slabs own one each and guard
// it. Chunks are the caller's: it adds one when nothing fits, and frees one when its last block is
// freed. First fit, the chunks in the order in which they came and each by address: a chunk fills
// from its beginning, so that later ones run empty. A chunk that has gone leaves its place in that
// order to the next one. To take and to give costs the logarithm of the number of chunks.
// A chunk serves one device and one label, because a pause saves, drops or leaves whole
// allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "shim/base/region.h"
#include "shim/memory/allocation_table.h"

namespace amem::shim {

/// Bytes of an allocation that a pause need not save.
struct Gap {
  std::uint64_t offset = 0;  // in the allocation
  std::uint64_t size = 0;
};

/// By allocation, the broker's id.
using Gaps = std::map<std::uint64_t, std::vector<Gap>>;

class SmallBlocks {
 public:
  /// As aligned as the driver's own small allocations are.
  static constexpr std::uint64_t kAlignment = 512;
  /// Heap's chunks, and its largest block: above it no two would share a chunk, and packing would
  /// save nothing.
  static constexpr std::uint64_t kChunk = 2ULL << 20U;
  static constexpr std::uint64_t kLargest = kChunk / 2;

  struct Pool {
    int device = 0;
    Label label;
    bool rdma = false;
    std::uint64_t block = 0;  // bytes, of all its blocks; 0: they differ
    friend auto operator<=>(const Pool&, const Pool&) = default;
  };

  /// A block of this many bytes, from chunks that are `usable`; or nothing: add one.
  /// REQUIRES: 0 < size.
  std::optional<Address> take(const Pool& pool, std::uint64_t size,
                              const std::function<bool(Address chunk)>& usable = nullptr);
  /// More space for this pool. REQUIRES: aligned, overlaps no other.
  void add(const Pool& pool, Address chunk, std::uint64_t size);
  /// Takes a block back. Returns its chunk if that is empty now, and forgets it. Not `reusable`:
  /// nobody gets that space again while the chunk lives.
  /// REQUIRES: take() gave this address.
  std::optional<Address> give(Address address, bool reusable = true);
  /// Where no block is, by chunk; what is not reusable, too. Only of `least` bytes and more.
  std::map<Address, std::vector<Gap>> unused(std::uint64_t least) const;

 private:
  /// The largest gap of each of a pool's chunks, which have a slot each: a tree of maxima, by which
  /// the first slot with a gap that is large enough is found without a look at the others.
  class Largest {
   public:
    void set(std::size_t slot, std::uint64_t size);
    /// The first slot from `slot` on that has as much; nothing: none.
    std::optional<std::size_t> first(std::size_t slot, std::uint64_t size) const;

   private:
    std::vector<std::uint64_t> nodes_;  // 1 is the root, n's children are 2n and 2n + 1
    std::size_t leaves_ = 0;            // a power of two; the second half of nodes_
  };

  struct PoolChunks {
    Largest largest;
    std::vector<Address> chunks;      // by slot
    std::set<std::size_t> left_over;  // slots whose chunks have gone
  };

  struct Chunk {
    Pool pool;
    std::size_t slot = 0;
    std::uint64_t size = 0;
    std::map<Address, std::uint64_t> free;   // by address; no two touch
    std::multiset<std::uint64_t> sizes;      // of `free`
    std::map<Address, std::uint64_t> taken;  // rounded sizes

    void add_gap(Address address, std::uint64_t size);
    void remove_gap(std::map<Address, std::uint64_t>::iterator gap);
  };

  /// The chunk's gaps have changed.
  void changed(const Chunk& chunk);
  void forget(std::map<Address, Chunk>::iterator chunk);

  std::map<Address, Chunk> chunks_;
  std::map<Pool, PoolChunks> pools_;
};

}  // namespace amem::shim
