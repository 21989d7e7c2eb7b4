// What the kernels share: how a thread block finds the group of blocks that it serves.
#pragma once

#include "common/sparse.h"

namespace amem::sparse {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kUnitsPerBlock = kBlock / kUnit;

/// Where the thread block's group is.
struct BlockGroup {
  uint64_t device;
  uint64_t pool;
  uint64_t length;
  uint32_t group;  // of the range
  uint32_t entry;
};

__device__ inline BlockGroup find(const Launch& launch, uint32_t group) {
  uint32_t low = 0;
  uint32_t high = launch.ranges;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (launch.range[middle].first_group <= group)
      low = middle;
    else
      high = middle;
  }
  const uint32_t in_range = group - launch.range[low].first_group;
  return {launch.range[low].device, launch.range[low].pool, launch.range[low].length, in_range,
          launch.range[low].first_entry + in_range};
}

/// Units of a block; 0 behind the end of the range.
__device__ inline uint32_t units_of(const BlockGroup& here, uint32_t block) {
  const uint64_t begin = here.group * kGroup + block * kBlock;
  if (begin >= here.length) return 0;
  const uint64_t rest = here.length - begin;
  return rest < kBlock ? rest / kUnit : kUnitsPerBlock;
}

__device__ inline uint4* block_at(const BlockGroup& here, uint32_t block) {
  return reinterpret_cast<uint4*>(here.device + here.group * kGroup + block * kBlock);
}

/// By a whole thread block of kCopyThreads. All loads of a full block are under way before its first store: the
/// link's latency is paid once.
__device__ inline void copy_units(uint4* to, const uint4* from, uint32_t units) {
  constexpr uint32_t kEach = kUnitsPerBlock / kCopyThreads;
  if (units == kUnitsPerBlock) {
    uint4 held[kEach];
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) held[i] = from[threadIdx.x + i * kCopyThreads];
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) to[threadIdx.x + i * kCopyThreads] = held[i];
    return;
  }
  for (uint32_t i = threadIdx.x; i < units; i += kCopyThreads) to[i] = from[i];
}

/// By a whole thread block of a warp for each block: sets the bits of the blocks whose warps have
/// found something.
__device__ inline void write_mask(const Launch& launch, const BlockGroup& here, bool found) {
  __shared__ uint32_t mask;
  if (threadIdx.x == 0) mask = 0;
  __syncthreads();
  if (threadIdx.x % kWarp == 0 && found) atomicOr(&mask, 1U << (threadIdx.x / kWarp));
  __syncthreads();
  if (threadIdx.x == 0) reinterpret_cast<Entry*>(launch.entries)[here.entry].mask = mask;
}

}  // namespace amem::sparse
