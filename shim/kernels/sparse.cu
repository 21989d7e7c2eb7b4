// The kernels of sparse copies and of their verification; common/sparse.h has the layout.
//
// Checked in as sparse.ptx, so that the build needs no CUDA compiler; make_ptx.sh makes it anew.
#include "common/sparse.h"
#include "shim/kernels/groups.cuh"

namespace {

using namespace amem::sparse;

constexpr uint32_t kScanUnroll = 8;

__device__ uint4* slot_at(const BlockGroup& here, uint32_t slot) {
  return reinterpret_cast<uint4*>(here.pool + index_bytes(here.length) + slot * kBlock);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kScanThreads)
    amem_sparse_scan(const __grid_constant__ Launch launch) {
  const BlockGroup here = find(launch, blockIdx.x);
  const uint32_t block = threadIdx.x / kWarp;
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t units = units_of(here, block);
  const uint4* at = block_at(here, block);
  // A block that is not zero mostly shows it at once: only zeros are read to the end.
  bool found = false;
  for (uint32_t base = 0; base < units && !found; base += kWarp * kScanUnroll) {
    uint32_t any = 0;
#pragma unroll
    for (uint32_t i = 0; i < kScanUnroll; ++i) {
      const uint32_t unit = base + i * kWarp + lane;
      const uint4 value = unit < units ? at[unit] : uint4{0, 0, 0, 0};
      any |= value.x | value.y | value.z | value.w;
    }
    found = __any_sync(0xffffffffU, any != 0) != 0;
  }
  write_mask(launch, here, found);
}

extern "C" __global__ void __launch_bounds__(kCopyThreads)
    amem_sparse_gather(const __grid_constant__ Launch launch) {
  const BlockGroup here = find(launch, blockIdx.x / kCopyParts);
  const uint32_t part = blockIdx.x % kCopyParts;
  constexpr uint32_t kEach = kBlocksPerGroup / kCopyParts;
  const Entry entry = reinterpret_cast<const Entry*>(launch.entries)[here.entry];
  if (part == 0 && threadIdx.x == 0) reinterpret_cast<Entry*>(here.pool)[here.group] = entry;
  const uint32_t begin = part * kEach;
  uint32_t slot = entry.first + __popc(entry.mask & ((1U << begin) - 1));
  for (uint32_t block = begin; block < begin + kEach; ++block) {
    if ((entry.mask >> block & 1) == 0) continue;
    copy_units(slot_at(here, slot), block_at(here, block), units_of(here, block));
    ++slot;
  }
}

extern "C" __global__ void __launch_bounds__(kCopyThreads)
    amem_sparse_scatter(const __grid_constant__ Launch launch) {
  const BlockGroup here = find(launch, blockIdx.x / kCopyParts);
  const uint32_t part = blockIdx.x % kCopyParts;
  constexpr uint32_t kEach = kBlocksPerGroup / kCopyParts;
  const Entry entry = reinterpret_cast<const Entry*>(here.pool)[here.group];
  const uint32_t begin = part * kEach;
  uint32_t slot = entry.first + __popc(entry.mask & ((1U << begin) - 1));
  // What is stored is no longer than what it was copied from: a slot beyond is a broken index.
  const uint64_t space = here.length - index_bytes(here.length);
  for (uint32_t block = begin; block < begin + kEach; ++block) {
    const uint32_t units = units_of(here, block);
    uint4* to = block_at(here, block);
    const bool stored = (entry.mask >> block & 1) != 0;
    if (stored && slot * kBlock + units * kUnit <= space) {
      copy_units(to, slot_at(here, slot), units);
    } else {
      for (uint32_t i = threadIdx.x; i < units; i += kCopyThreads) to[i] = uint4{0, 0, 0, 0};
    }
    slot += stored ? 1 : 0;
  }
}

extern "C" __global__ void __launch_bounds__(kScanThreads)
    amem_sparse_checksum(const __grid_constant__ Launch launch) {
  const BlockGroup here = find(launch, blockIdx.x);
  const uint32_t block = threadIdx.x / kWarp;
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t units = units_of(here, block);
  const uint64_t first_word = (here.group * kGroup + block * kBlock) / sizeof(uint64_t);
  const ulonglong2* at = reinterpret_cast<const ulonglong2*>(block_at(here, block));
  uint64_t sum = 0;
#pragma unroll 4
  for (uint32_t unit = lane; unit < units; unit += kWarp) {
    const ulonglong2 value = at[unit];
    const uint64_t word = first_word + unit * 2ULL;
    sum += mix(value.x, word) + mix(value.y, word + 1);
  }
  for (uint32_t distance = kWarp / 2; distance > 0; distance /= 2)
    sum += __shfl_down_sync(0xffffffffU, sum, distance);
  __shared__ uint64_t sums[kBlocksPerGroup];
  if (lane == 0) sums[block] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint64_t total = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < kBlocksPerGroup; ++i) total += sums[i];
  reinterpret_cast<uint64_t*>(launch.entries)[here.entry] = total;
}

extern "C" __global__ void __launch_bounds__(kWordsThreads)
    amem_sparse_words(const __grid_constant__ Words words) {
  const uint32_t i = blockIdx.x * kWordsThreads + threadIdx.x;
  if (i >= words.count) return;
  uint64_t* const list = reinterpret_cast<uint64_t*>(words.list);
  list[words.count + i] = *reinterpret_cast<const uint64_t*>(list[i]);
}
