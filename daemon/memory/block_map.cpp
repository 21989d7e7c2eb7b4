#include "daemon/memory/block_map.h"

#include <bit>

namespace amem {

using sparse::kBlock;
using sparse::kBlocksPerGroup;

bool BlockMap::add(std::span<const std::uint32_t> masks) {
  if (masks.size() > sparse::groups(size_) - known()) return false;
  for (std::uint32_t mask : masks) {
    const std::uint64_t left = sparse::blocks(size_) - known() * kBlocksPerGroup;
    if (left < kBlocksPerGroup) mask &= (1U << left) - 1;  // there is nothing behind the end
    before_.push_back(
        masks_.empty() ? 0
                       : before_.back() + static_cast<std::uint64_t>(std::popcount(masks_.back())));
    masks_.push_back(mask);
  }
  return true;
}

std::uint64_t BlockMap::not_zero_before(std::uint64_t block) const {
  if (block == 0) return 0;
  const std::uint64_t last = block - 1;
  const std::uint32_t mask = masks_[last / kBlocksPerGroup];
  const std::uint32_t up_to_last = ~0U >> (kBlocksPerGroup - 1 - last % kBlocksPerGroup);
  return before_[last / kBlocksPerGroup] +
         static_cast<std::uint64_t>(std::popcount(mask & up_to_last));
}

sparse::Content BlockMap::content(std::uint64_t offset, std::uint64_t length) const {
  const std::uint64_t end = sparse::blocks(offset + length);
  const std::uint64_t found = not_zero_before(end) - not_zero_before(offset / kBlock);
  const bool last = not_zero_before(end) > not_zero_before(end - 1);
  return sparse::content(length, found, last);
}

void Measurement::ask(AllocationId id, RankId keeper, std::uint64_t size) {
  asked_.insert_or_assign(id, Asked{keeper, BlockMap(size)});
}

bool Measurement::told(RankId rank, AllocationId id, std::uint64_t first,
                       std::span<const std::uint32_t> masks) {
  const auto it = asked_.find(id);
  return it != asked_.end() && it->second.keeper == rank && it->second.blocks.known() == first &&
         it->second.blocks.add(masks);
}

const BlockMap* Measurement::blocks(AllocationId id) const {
  const auto it = asked_.find(id);
  return it != asked_.end() && it->second.blocks.complete() ? &it->second.blocks : nullptr;
}

std::uint64_t Measurement::not_seen() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, asked] : asked_)
    if (!asked.blocks.complete()) bytes += asked.blocks.size();
  return bytes;
}

}  // namespace amem
