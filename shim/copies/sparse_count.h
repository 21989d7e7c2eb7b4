// Sparse copies, the part that only counts what was found (common/sparse.h has the layout, and what
// follows from the count). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/sparse.h"
#include "shim/scratch/fifos.h"

namespace amem::shim {

/// The kernels can work on it.
bool fits_kernels(std::uint64_t device_address, std::uint64_t pool_address, std::uint64_t length);

/// Sums up what scan found of one piece: fills in each entry's `first`. Blocks behind the end count
/// for nothing. REQUIRES: entries.size() == groups(length).
sparse::Content count(std::span<sparse::Entry> entries, std::uint64_t length);

/// Blocks of a piece, `length` bytes of an allocation from `offset` on, that lie in these gaps
/// count as zero from now on. A block that a gap has only a part of stays as it was found.
void leave_out(std::span<sparse::Entry> entries, std::uint64_t offset, std::uint64_t length,
               std::span<const Gap> gaps);

/// Groups of a piece, next to each other.
struct GroupRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// Returns the groups of the piece, as in leave_out(), that are not wholly in these gaps; in order,
/// in as few runs as possible.
std::vector<GroupRun> groups_beside(std::uint64_t offset, std::uint64_t length,
                                    std::span<const Gap> gaps);

/// From the sums of a piece's groups; never 0.
std::uint64_t checksum(std::span<const std::uint64_t> sums);

}  // namespace amem::shim
