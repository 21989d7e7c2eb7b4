#include "shim/blocks/small_blocks.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "common/numbers.h"

namespace amem::shim {

void SmallBlocks::Largest::set(std::size_t slot, std::uint64_t size) {
  if (slot >= leaves_) {
    const std::size_t leaves = std::bit_ceil(slot + 1);
    std::vector<std::uint64_t> nodes(2 * leaves);
    std::copy_n(nodes_.begin() + static_cast<std::ptrdiff_t>(leaves_), leaves_,
                nodes.begin() + static_cast<std::ptrdiff_t>(leaves));
    nodes_ = std::move(nodes);
    leaves_ = leaves;
    for (std::size_t node = leaves_ - 1; node > 0; --node)
      nodes_[node] = std::max(nodes_[2 * node], nodes_[2 * node + 1]);
  }
  std::size_t node = leaves_ + slot;
  nodes_[node] = size;
  for (node /= 2; node > 0; node /= 2)
    nodes_[node] = std::max(nodes_[2 * node], nodes_[2 * node + 1]);
}

std::optional<std::size_t> SmallBlocks::Largest::first(std::size_t slot, std::uint64_t size) const {
  if (slot >= leaves_) return std::nullopt;
  std::size_t node = leaves_ + slot;
  while (nodes_[node] < size) {
    // Behind what this node covers; where that is the end, a node of its own row is a power of two.
    ++node;
    if (std::has_single_bit(node)) return std::nullopt;
    while (node % 2 == 0) node /= 2;
  }
  while (node < leaves_) {
    node *= 2;
    if (nodes_[node] < size) ++node;
  }
  return node - leaves_;
}

void SmallBlocks::Chunk::add_gap(Address address, std::uint64_t gap) {
  free.emplace(address, gap);
  sizes.insert(gap);
}

void SmallBlocks::Chunk::remove_gap(std::map<Address, std::uint64_t>::iterator gap) {
  sizes.erase(sizes.find(gap->second));
  free.erase(gap);
}

void SmallBlocks::changed(const Chunk& chunk) {
  pools_.at(chunk.pool).largest.set(chunk.slot, chunk.sizes.empty() ? 0 : *chunk.sizes.rbegin());
}

std::optional<Address> SmallBlocks::take(const Pool& pool, std::uint64_t size,
                                         const std::function<bool(Address chunk)>& usable) {
  size = round_up(size, kAlignment);
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return std::nullopt;
  const PoolChunks& all = found->second;
  std::optional<std::size_t> slot = all.largest.first(0, size);
  while (slot && usable != nullptr && !usable(all.chunks[*slot]))
    slot = all.largest.first(*slot + 1, size);
  if (!slot) return std::nullopt;
  Chunk& chunk = chunks_.at(all.chunks[*slot]);
  const auto gap = std::find_if(chunk.free.begin(), chunk.free.end(),
                                [&](const auto& each) { return each.second >= size; });
  const auto [address, left] = *gap;
  chunk.remove_gap(gap);
  if (left > size) chunk.add_gap(address + size, left - size);
  chunk.taken.emplace(address, size);
  changed(chunk);
  return address;
}

void SmallBlocks::add(const Pool& pool, Address address, std::uint64_t size) {
  PoolChunks& all = pools_[pool];
  Chunk& chunk =
      chunks_.emplace(address, Chunk{pool, all.chunks.size(), size, {}, {}, {}}).first->second;
  if (all.left_over.empty()) {
    all.chunks.push_back(address);
  } else {
    chunk.slot = *all.left_over.begin();
    all.left_over.erase(all.left_over.begin());
    all.chunks[chunk.slot] = address;
  }
  chunk.add_gap(address, size);
  changed(chunk);
}

void SmallBlocks::forget(std::map<Address, Chunk>::iterator chunk) {
  const auto found = pools_.find(chunk->second.pool);
  PoolChunks& all = found->second;
  all.largest.set(chunk->second.slot, 0);
  all.left_over.insert(chunk->second.slot);
  if (all.left_over.size() == all.chunks.size()) pools_.erase(found);
  chunks_.erase(chunk);
}

std::optional<Address> SmallBlocks::give(Address address, bool reusable) {
  const auto it = std::prev(chunks_.upper_bound(address));
  Chunk& chunk = it->second;
  const auto block = chunk.taken.find(address);
  std::uint64_t size = block->second;
  chunk.taken.erase(block);
  if (chunk.taken.empty()) {
    const Address base = it->first;
    forget(it);
    return base;
  }
  if (!reusable) return std::nullopt;
  // One gap of the block and the gaps that it touches.
  Address begin = address;
  const auto after = chunk.free.lower_bound(address);
  if (after != chunk.free.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == address) {
      begin = before->first;
      size += before->second;
      chunk.remove_gap(before);
    }
  }
  if (after != chunk.free.end() && after->first == begin + size) {
    size += after->second;
    chunk.remove_gap(after);
  }
  chunk.add_gap(begin, size);
  changed(chunk);
  return std::nullopt;
}

std::map<Address, std::vector<Gap>> SmallBlocks::unused(std::uint64_t least) const {
  std::map<Address, std::vector<Gap>> unused;
  for (const auto& [base, chunk] : chunks_) {
    Address next = base;
    const auto until = [&, base = base](Address end) {
      if (end - next >= least) unused[base].push_back({next - base, end - next});
    };
    for (const auto& [address, size] : chunk.taken) {
      until(address);
      next = address + size;
    }
    until(base + chunk.size);
  }
  return unused;
}

}  // namespace amem::shim
