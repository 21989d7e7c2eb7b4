#include "shim/blocks/small_blocks.h"

#include <iterator>

namespace amem::shim {

std::optional<Address> SmallBlocks::take(const Pool& pool, std::uint64_t size,
                                         const std::function<bool(Address chunk)>& usable) {
  size = (size + kAlignment - 1) / kAlignment * kAlignment;
  for (auto& [base, chunk] : chunks_) {
    if (chunk.pool != pool) continue;
    for (auto gap = chunk.free.begin(); gap != chunk.free.end(); ++gap) {
      const auto [address, room] = *gap;
      if (room < size) continue;
      if (usable != nullptr && !usable(base)) break;
      chunk.free.erase(gap);
      if (room > size) chunk.free.emplace(address + size, room - size);
      chunk.taken.emplace(address, size);
      return address;
    }
  }
  return std::nullopt;
}

void SmallBlocks::add(const Pool& pool, Address chunk, std::uint64_t size) {
  chunks_.emplace(chunk, Chunk{pool, size, {{chunk, size}}, {}});
}

std::optional<Address> SmallBlocks::give(Address address, bool reusable) {
  const auto it = std::prev(chunks_.upper_bound(address));
  Chunk& chunk = it->second;
  const auto piece = chunk.taken.find(address);
  std::uint64_t size = piece->second;
  chunk.taken.erase(piece);
  if (chunk.taken.empty()) {
    const Address base = it->first;
    chunks_.erase(it);
    return base;
  }
  if (!reusable) return std::nullopt;
  // One gap of the piece and the gaps that it touches.
  auto after = chunk.free.lower_bound(address);
  if (after != chunk.free.end() && after->first == address + size) {
    size += after->second;
    after = chunk.free.erase(after);
  }
  if (after != chunk.free.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == address) {
      before->second += size;
      return std::nullopt;
    }
  }
  chunk.free.emplace_hint(after, address, size);
  return std::nullopt;
}

}  // namespace amem::shim
