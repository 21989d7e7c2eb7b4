// The kernels that find out which blocks have changed; common/block_hash.h has the hash.
//
// Checked in as block_hash.ptx, so that the build needs no CUDA compiler; make_ptx.sh makes it
// anew.
#include "common/block_hash.h"
#include "shim/kernels/groups.cuh"

namespace {

using namespace amem::sparse;
namespace block_hash = amem::block_hash;

__device__ block_hash::Word128 unit_of(uint4 value) { return {{value.x, value.y, value.z, value.w}}; }

}  // namespace

/// In the module's own memory, so that nothing is allocated, and reads of it hit the caches.
extern "C" {
__device__ block_hash::Key amem_block_module_key;
}

extern "C" __global__ void __launch_bounds__(block_hash::kKeyThreads)
    amem_block_key(const __grid_constant__ block_hash::SetKey from) {
  const uint64_t* const words = reinterpret_cast<const uint64_t*>(from.key);
  uint64_t* const key = reinterpret_cast<uint64_t*>(&amem_block_module_key);
  for (uint32_t i = threadIdx.x; i < sizeof(block_hash::Key) / sizeof *key;
       i += block_hash::kKeyThreads)
    key[i] = words[i];
}

extern "C" __global__ void __launch_bounds__(block_hash::kThreads)
    amem_block_hash(const __grid_constant__ Launch launch) {
  const BlockGroup here = find(launch, blockIdx.x);
  const uint32_t block = threadIdx.x / kWarp;
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t units = units_of(here, block);
  const uint4* const at = block_at(here, block);
  const uint4* const key = reinterpret_cast<const uint4*>(amem_block_module_key.unit);
  block_hash::Sums sums{};
#pragma unroll 4
  for (uint32_t unit = lane; unit < units; unit += kWarp)
    block_hash::add(sums, unit_of(at[unit]), unit_of(__ldg(key + unit)),
                    unit_of(__ldg(key + unit + 1)), unit_of(__ldg(key + unit + 2)));
  for (uint32_t row = 0; row < block_hash::kRows; ++row)
    for (uint32_t distance = kWarp / 2; distance > 0; distance /= 2)
      sums.row[row] += __shfl_down_sync(0xffffffffU, sums.row[row], distance);
  if (lane != 0) return;
  block_hash::Hash* const hashes = reinterpret_cast<block_hash::Hash*>(launch.entries);
  hashes[here.entry * uint64_t{kBlocksPerGroup} + block] =
      block_hash::finish(sums, amem_block_module_key.point);
}

extern "C" __global__ void __launch_bounds__(block_hash::kThreads)
    amem_block_compare(const __grid_constant__ Launch launch) {
  const BlockGroup here = find(launch, blockIdx.x);
  const uint32_t block = threadIdx.x / kWarp;
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t units = units_of(here, block);
  const uint4* const at = block_at(here, block);
  const uint4* const copy =
      reinterpret_cast<const uint4*>(here.pool + here.group * kGroup + block * kBlock);
  uint32_t differs = 0;
#pragma unroll 4
  for (uint32_t unit = lane; unit < units; unit += kWarp) {
    const uint4 a = at[unit];
    const uint4 b = copy[unit];
    differs |= (a.x ^ b.x) | (a.y ^ b.y) | (a.z ^ b.z) | (a.w ^ b.w);
  }
  write_mask(launch, here, __any_sync(0xffffffffU, differs != 0) != 0);
}

extern "C" __global__ void __launch_bounds__(kCopyThreads)
    amem_block_copy(const __grid_constant__ Launch launch) {
  const BlockGroup here = find(launch, blockIdx.x / kCopyParts);
  constexpr uint32_t kEach = kBlocksPerGroup / kCopyParts;
  const uint32_t mask = reinterpret_cast<const Entry*>(launch.entries)[here.entry].mask;
  const uint32_t begin = blockIdx.x % kCopyParts * kEach;
  for (uint32_t block = begin; block < begin + kEach; ++block) {
    if ((mask >> block & 1) == 0) continue;
    uint4* const to = reinterpret_cast<uint4*>(here.pool + here.group * kGroup + block * kBlock);
    copy_units(to, block_at(here, block), units_of(here, block));
  }
}
