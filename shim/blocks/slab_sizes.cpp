#include "shim/blocks/slab_sizes.h"

#include <algorithm>

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

std::uint64_t SlabSizes::next(const Pool& pool, std::uint64_t size, std::uint64_t unit,
                              std::uint64_t most) {
  const PieceKind& kind = kinds_[number(pool)];
  std::uint64_t wanted = std::min(most, std::max(kind.bytes / 4, unit));
  if (pool.piece != 0) {
    const std::uint64_t shared = most / kSharing;
    std::uint64_t pieces = kind.row;
    if (kind.bytes == 0) {
      pieces = std::max(pieces, kFirst);
      while (pieces > 1 && pieces * pool.piece > shared) pieces /= 2;
    } else if (pieces < kShortestRow) {
      pieces = std::max(pieces, kind.bytes / pool.piece / 4);
    } else {
      pieces *= std::max<std::uint64_t>(1, std::min(shared, kind.bytes) / (pieces * pool.piece));
    }
    // What is too long for one is cut evenly.
    if (pieces * pool.piece > most)
      pieces = divide_up(pieces, divide_up(pieces * pool.piece, std::max(most, pool.piece)));
    wanted = pieces * pool.piece;
  }
  return round_up(std::max(wanted, size), unit);
}

}  // namespace amem::shim
