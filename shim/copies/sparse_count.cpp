#include "shim/copies/sparse_count.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace amem::shim {

using namespace sparse;

bool fits_kernels(std::uint64_t device_address, std::uint64_t pool_address, std::uint64_t length) {
  return length > 0 && (device_address | pool_address | length) % kUnit == 0;
}

Content count(std::span<Entry> entries, std::uint64_t length) {
  std::uint64_t found = 0;
  const std::uint64_t blocks = sparse::blocks(length);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Entry& entry = entries[i];
    const std::uint64_t here = std::min<std::uint64_t>(
        kBlocksPerGroup, blocks - std::min(blocks, i * std::uint64_t{kBlocksPerGroup}));
    if (here < kBlocksPerGroup) entry.mask &= (1U << here) - 1;
    entry.first = static_cast<std::uint32_t>(found);
    found += static_cast<std::uint64_t>(std::popcount(entry.mask));
  }
  const bool last = (entries.back().mask >> ((blocks - 1) % kBlocksPerGroup) & 1) != 0;
  return content(length, found, last);
}

void leave_out(std::span<sparse::Entry> entries, std::uint64_t offset, std::uint64_t length,
               std::span<const Gap> gaps) {
  const std::uint64_t end = offset + length;
  for (const Gap& gap : gaps) {
    const std::uint64_t from = std::max(gap.offset, offset);
    const std::uint64_t to = std::min(gap.offset + gap.size, end);
    if (from >= to) continue;
    const std::uint64_t first = sparse::blocks(from - offset);  // rounded up
    // The piece's last block may be short.
    const std::uint64_t last = to == end ? sparse::blocks(length) : (to - offset) / sparse::kBlock;
    for (std::uint64_t block = first; block < last; ++block)
      entries[block / sparse::kBlocksPerGroup].mask &= ~(1U << block % sparse::kBlocksPerGroup);
  }
}

std::vector<GroupRun> groups_beside(std::uint64_t offset, std::uint64_t length,
                                    std::span<const Gap> gaps) {
  std::vector<Entry> entries(sparse::groups(length), Entry{~0U, 0});
  entries.back().mask >>=
      (kBlocksPerGroup - sparse::blocks(length) % kBlocksPerGroup) % kBlocksPerGroup;
  leave_out(entries, offset, length, gaps);
  std::vector<GroupRun> runs;
  for (std::uint32_t group = 0; group < entries.size(); ++group) {
    if (entries[group].mask == 0) continue;
    if (runs.empty() || runs.back().first + runs.back().count != group) runs.push_back({group, 0});
    ++runs.back().count;
  }
  return runs;
}

std::uint64_t checksum(std::span<const std::uint64_t> sums) {
  const std::uint64_t sum = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
  return sum != 0 ? sum : 1;
}

}  // namespace amem::shim
