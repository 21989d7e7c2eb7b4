#include "shim/phases/sparse.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace amem::shim {

using namespace sparse;

bool fits_kernels(std::uint64_t device_address, std::uint64_t pool_address, std::uint64_t length) {
  return length > 0 && (device_address | pool_address | length) % kUnit == 0;
}

Content count(std::span<Entry> entries, std::uint64_t length) {
  Content content;
  const std::uint64_t blocks = sparse::blocks(length);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Entry& entry = entries[i];
    const std::uint64_t here = std::min<std::uint64_t>(
        kBlocksPerGroup, blocks - std::min(blocks, i * std::uint64_t{kBlocksPerGroup}));
    if (here < kBlocksPerGroup) entry.mask &= (1U << here) - 1;
    entry.first = static_cast<std::uint32_t>(content.blocks);
    content.blocks += static_cast<std::uint64_t>(std::popcount(entry.mask));
  }
  content.stored = index_bytes(length) + content.blocks * kBlock;
  // The last block may be shorter; in order, it has the last slot.
  const std::uint64_t last = blocks - 1;
  const bool last_is_stored = (entries.back().mask >> (last % kBlocksPerGroup) & 1) != 0;
  if (last_is_stored) content.stored -= blocks * kBlock - length;
  return content;
}

bool save_sparse(const Content& content, std::uint64_t length, bool wanted) {
  if (content.stored >= length) return false;
  return wanted || content.blocks * 100 <= sparse::blocks(length) * kSparsePercent;
}

std::uint64_t checksum(std::span<const std::uint64_t> sums) {
  const std::uint64_t sum = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
  return sum != 0 ? sum : 1;
}

}  // namespace amem::shim
