#include "shim/slab_sizes.h"

#include <algorithm>

namespace amem::shim {
namespace {

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

}  // namespace

void SlabSizes::count(const Pool& pool, Row& row) {
  if (pool.piece == 0) return;
  if (row.pool != pool) {
    if (row.pool && row.length > 1) kinds_[*row.pool].row = row.length;
    row = {pool, 0};
  }
  Kind& kind = kinds_[pool];
  kind.row = std::max(kind.row, row.length);
  ++row.length;
}

std::uint64_t SlabSizes::next(const Pool& pool, std::uint64_t size, std::uint64_t unit,
                              std::uint64_t most) const {
  const auto it = kinds_.find(pool);
  const Kind kind = it != kinds_.end() ? it->second : Kind();
  std::uint64_t wanted = std::min(most, std::max(kind.bytes / 4, unit));
  if (pool.piece != 0) {
    std::uint64_t pieces = kind.row;
    if (pieces < kShortestRow) pieces = std::max(pieces, kind.bytes / pool.piece / 4);
    // What is too long for one is cut evenly.
    if (pieces * pool.piece > most)
      pieces = divide_up(pieces, divide_up(pieces * pool.piece, std::max(most, pool.piece)));
    wanted = pieces * pool.piece;
  }
  return divide_up(std::max(wanted, size), unit) * unit;
}

}  // namespace amem::shim
