// Sparse copies, the part that only counts: what is stored of a piece and whether that pays
// (common/sparse.h has the layout). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "common/sparse.h"

namespace amem::shim {

/// A piece is saved sparsely by itself when at most this share of its blocks is not zero: blocks
/// cost the kernels a little more than bytes cost the copy engine.
inline constexpr std::uint64_t kSparsePercent = 60;

/// The kernels can work on it.
bool fits_kernels(std::uint64_t device_address, std::uint64_t pool_address, std::uint64_t length);

/// Sums up what scan found of one piece: fills in each entry's `first`. Blocks behind the end count
/// for nothing. REQUIRES: entries.size() == groups(length).
struct Content {
  std::uint64_t blocks = 0;  // of these are not zero
  std::uint64_t stored = 0;  // bytes of a sparse copy, index and blocks
};
Content count(std::span<sparse::Entry> entries, std::uint64_t length);

/// Whether to save the piece sparsely. `wanted`: not only where it pays, but wherever it is
/// shorter. A sparse copy is never longer than the piece, so that it fits where the dense one
/// would.
bool save_sparse(const Content& content, std::uint64_t length, bool wanted);

/// From the sums of a piece's groups; never 0.
std::uint64_t checksum(std::span<const std::uint64_t> sums);

}  // namespace amem::shim
