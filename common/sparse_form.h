// Sparse copies: what a piece takes in the host pool, and whether it is saved sparsely. The shim
// decides by this when it saves, and the broker when it makes space for that, so both reckon alike
// (common/sparse.h has the layout). Pure functions.
#pragma once

#include <cstdint>

#include "common/sparse.h"

namespace amem::sparse {

/// A piece is saved sparsely by itself when at most this share of its blocks is not zero: blocks
/// cost the kernels a little more than bytes cost the copy engine.
inline constexpr std::uint64_t kSparsePercent = 60;

struct Content {
  std::uint64_t blocks = 0;  // of these are not zero
  std::uint64_t stored = 0;  // bytes of a sparse copy, index and blocks
};

/// Of a piece with so many blocks that are not zero; `last`: its last block is one of them.
/// REQUIRES: length > 0.
constexpr Content content(std::uint64_t length, std::uint64_t not_zero, bool last) {
  Content content{not_zero, index_bytes(length) + not_zero * kBlock};
  // The last block may be shorter; in order, it has the last slot.
  if (last) content.stored -= blocks(length) * kBlock - length;
  return content;
}

/// Whether to save the piece sparsely. `wanted`: not only where it pays, but wherever it is
/// shorter. A sparse copy is never longer than the piece, so that it fits where the dense one
/// would.
constexpr bool save_sparse(const Content& content, std::uint64_t length, bool wanted) {
  if (content.stored >= length) return false;
  return wanted || content.blocks * 100 <= blocks(length) * kSparsePercent;
}

}  // namespace amem::sparse
