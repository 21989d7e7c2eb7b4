// Packing: space in the pool for what a pause saves, no larger than the look for zeros says.
//
// An extent may be shorter than the piece of the allocation that it is for; that piece must then be
// saved sparsely.
//
// Pure except for the allocator that it takes from. Not synchronised.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/memory/allocations.h"
#include "daemon/memory/block_map.h"
#include "daemon/memory/extents.h"

namespace amem {

struct PackRequest {
  std::uint64_t size = 0;
  std::size_t order = 0;  // which of the orders
  Form form = Form::kAuto;
  const BlockMap* blocks = nullptr;  // null: nobody has looked, all of it counts
};

struct TakenSpace {
  Extents extents;
  std::vector<Stored> pieces;  // one for each extent
};

struct Packing {
  std::vector<TakenSpace> spaces;  // one for each request, in order
  std::uint64_t missing = 0;  // not 0: so many bytes more are needed, and nothing has been taken
};

/// Returns the bytes that the request takes, in whole chunks, where it may lie in one piece.
std::uint64_t packed_size(const PackRequest& request, std::uint64_t chunk);

/// All or nothing. REQUIRES: every order names every segment; the pool's chunk is a multiple of
/// sparse::kBlock.
Packing pack(ExtentAllocator& pool, const std::vector<PackRequest>& requests,
             const std::vector<SegmentOrder>& orders);

}  // namespace amem
