#include "shim/copies/block_hashes.h"

#include <algorithm>
#include <utility>

namespace amem::shim {

std::vector<ByteRun> changed(const std::vector<block_hash::Hash>& before,
                             const std::vector<block_hash::Hash>& now, std::uint64_t length) {
  std::vector<ByteRun> runs;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const bool taken = now[i].high != 0;
    if (taken && now[i] == before[i]) continue;
    const std::uint64_t offset = i * sparse::kBlock;
    const std::uint64_t bytes = std::min(sparse::kBlock, length - offset);
    if (!runs.empty() && runs.back().offset + runs.back().length == offset)
      runs.back().length += bytes;
    else
      runs.push_back({offset, bytes});
  }
  return runs;
}

std::vector<std::uint32_t> masks_of(std::span<const ByteRun> runs, std::uint64_t length) {
  std::vector<std::uint32_t> masks(sparse::groups(length));
  for (const ByteRun& run : runs) {
    const std::uint64_t first = run.offset / sparse::kBlock;
    for (std::uint64_t block = first; block < first + sparse::blocks(run.length); ++block)
      masks[block / sparse::kBlocksPerGroup] |= 1U << (block % sparse::kBlocksPerGroup);
  }
  return masks;
}

const BlockHashes::Hashes* BlockHashes::find(const SavedPlace& place, std::uint64_t epoch) const {
  const auto allocation = allocations_.find(place.id);
  const bool of_epoch = allocation != allocations_.end() && allocation->second.epoch == epoch;
  return of_epoch ? of(place) : nullptr;
}

const BlockHashes::Hashes* BlockHashes::of(const SavedPlace& place) const {
  const auto allocation = allocations_.find(place.id);
  if (allocation == allocations_.end()) return nullptr;
  const auto part = allocation->second.parts.find(place.offset);
  const bool same = part != allocation->second.parts.end() && part->second.place == place;
  return same ? &part->second.hashes : nullptr;
}

void BlockHashes::drop(std::uint64_t id, std::uint64_t offset) {
  const auto allocation = allocations_.find(id);
  if (allocation == allocations_.end()) return;
  allocation->second.parts.erase(offset);
  if (allocation->second.parts.empty()) allocations_.erase(allocation);
}

void BlockHashes::set(const SavedPlace& place, std::uint64_t epoch, Hashes hashes) {
  Allocation& allocation = allocations_[place.id];
  if (std::exchange(allocation.epoch, epoch) != epoch) allocation.parts.clear();
  allocation.parts.insert_or_assign(place.offset, Of{place, std::move(hashes)});
}

void BlockHashes::drop_others(const std::function<bool(std::uint64_t id)>& has) {
  std::erase_if(allocations_, [&](const auto& entry) { return !has(entry.first); });
}

}  // namespace amem::shim
