#include "shim/blocks/slab_sizes.h"

#include <algorithm>
#include <bit>

#include "common/rounding.h"

namespace amem::shim {

std::size_t SlabSizes::number(const Pool& pool) {
  const auto [it, first] = numbers_.try_emplace(pool, kinds_.size());
  if (first) kinds_.emplace_back();
  return it->second;
}

void SlabSizes::count(const Pool& pool, Row& row) {
  if (pool.piece == 0) return;
  const std::size_t kind = number(pool);
  if (row.kind != kind) {
    if (row.length > 1) kinds_[row.kind].row = row.length;
    row = {kind, 0};
  }
  kinds_[kind].row = std::max(kinds_[kind].row, row.length);
  ++row.length;
}

std::uint64_t SlabSizes::pieces(const PieceKind& kind, const Row& row, std::uint64_t size,
                                std::uint64_t shared) {
  const std::uint64_t first = std::clamp<std::uint64_t>(std::bit_floor(shared / size), 1, kFirst);
  if (kind.bytes == 0) return first;
  if (kind.row < kShortestRow) return std::max(kind.row, kind.bytes / size / 4);
  const std::uint64_t made = row.length - 1;
  // Longer than any before: there may be as much again, or nothing.
  if (made >= kind.row) return std::max(first, made / 3);
  std::uint64_t pieces = kind.row - made;
  while ((pieces + kind.row) * size <= std::min(shared, kind.bytes)) pieces += kind.row;
  return pieces;
}

std::uint64_t SlabSizes::next(const Pool& pool, const Row& row, std::uint64_t size,
                              std::uint64_t unit, std::uint64_t most) {
  const PieceKind& kind = kinds_[number(pool)];
  std::uint64_t wanted = std::min(most, std::max(kind.bytes / 4, unit));
  if (pool.piece != 0) {
    std::uint64_t pieces = this->pieces(kind, row, pool.piece, most / kSharing);
    // What is too long for one is cut evenly.
    if (pieces * pool.piece > most)
      pieces = divide_up(pieces, divide_up(pieces * pool.piece, std::max(most, pool.piece)));
    wanted = pieces * pool.piece;
  }
  return round_up(std::max(wanted, size), unit);
}

}  // namespace amem::shim
