#include "shim/blocks/slab_sizes.h"

#include <algorithm>
#include <bit>

#include "common/numbers.h"

namespace amem::shim {

std::size_t SlabSizes::number(const Pool& pool) {
  const auto [it, first] = numbers_.try_emplace(pool, kinds_.size());
  if (first) kinds_.emplace_back();
  return it->second;
}

void SlabSizes::count(const Pool& pool, Row& row) {
  if (pool.block == 0) return;
  const std::size_t kind = number(pool);
  if (row.kind != kind) {
    if (row.length > 1) kinds_[row.kind].row = row.length;
    row = {kind, 0};
  }
  kinds_[kind].row = std::max(kinds_[kind].row, row.length);
  ++row.length;
}

std::uint64_t SlabSizes::buffers(const BufferKind& kind, const Row& row, std::uint64_t size,
                                 std::uint64_t shared) {
  const std::uint64_t first = std::clamp<std::uint64_t>(std::bit_floor(shared / size), 1, kFirst);
  if (kind.bytes == 0) return first;
  if (kind.row < kShortestRow) return std::max(kind.row, kind.bytes / size / 4);
  const std::uint64_t made = row.length - 1;
  // Longer than any before: there may be as much again, or nothing.
  if (made >= kind.row) return std::max(first, made / 3);
  std::uint64_t buffers = kind.row - made;
  while ((buffers + kind.row) * size <= std::min(shared, kind.bytes)) buffers += kind.row;
  return buffers;
}

std::uint64_t SlabSizes::next(const Pool& pool, const Row& row, std::uint64_t size,
                              std::uint64_t unit, std::uint64_t most) {
  const BufferKind& kind = kinds_[number(pool)];
  std::uint64_t wanted = std::min(most, std::max(kind.bytes / 4, unit));
  if (pool.block != 0) {
    std::uint64_t buffers = this->buffers(kind, row, pool.block, most / kSharing);
    // What is too long for one is cut evenly.
    if (buffers * pool.block > most)
      buffers = divide_up(buffers, divide_up(buffers * pool.block, std::max(most, pool.block)));
    wanted = buffers * pool.block;
  }
  return round_up(std::max(wanted, size), unit);
}

}  // namespace amem::shim
