// SmallBlocks: hands out pieces of chunks to allocations too small for physical memory of their
// own, which comes in 2 MiB.
//
// Pure bookkeeping over addresses, no driver calls, no lock: Heap and Slabs own one each and guard
// it. Chunks are the caller's: it adds one when nothing fits, and frees one when the last piece has
// come back. First fit by address: a chunk fills from its beginning, so that later ones run empty.
// A chunk serves one device and one label, because a pause saves, drops or leaves whole
// allocations.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "shim/base/region.h"
#include "shim/memory/allocation_table.h"

namespace amem::shim {

class SmallBlocks {
 public:
  /// As aligned as the driver's own small allocations are.
  static constexpr std::uint64_t kAlignment = 512;
  /// Heap's chunks, and its largest piece: above it no two would share a chunk, and packing would
  /// save nothing.
  static constexpr std::uint64_t kChunk = 2ULL << 20U;
  static constexpr std::uint64_t kLargest = kChunk / 2;

  struct Pool {
    int device = 0;
    Label label;
    bool rdma = false;
    std::uint64_t piece = 0;  // bytes, of all its pieces; 0: they differ
    friend auto operator<=>(const Pool&, const Pool&) = default;
  };

  /// A piece of this many bytes, from chunks that are `usable`; or nothing: add one.
  /// REQUIRES: 0 < size.
  std::optional<Address> take(const Pool& pool, std::uint64_t size,
                              const std::function<bool(Address chunk)>& usable = nullptr);
  /// More room for this pool. REQUIRES: aligned, overlaps no other.
  void add(const Pool& pool, Address chunk, std::uint64_t size);
  /// A piece comes back. Answers its chunk when that is empty now; it is forgotten. Not `reusable`:
  /// nobody gets that room again as long as the chunk lives.
  /// REQUIRES: take() gave this address.
  std::optional<Address> give(Address address, bool reusable = true);

 private:
  struct Chunk {
    Pool pool;
    std::uint64_t size = 0;
    std::map<Address, std::uint64_t> free;   // by address; no two touch
    std::map<Address, std::uint64_t> taken;  // rounded sizes
  };

  std::map<Address, Chunk> chunks_;
};

}  // namespace amem::shim
