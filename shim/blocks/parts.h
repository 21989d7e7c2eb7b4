// Parts: a large block is made of allocations of few sizes, so that most memory of one program has
// the size of another's, and can be handed on between their groups. Pure; any thread.
#pragma once

#include <cstdint>

namespace amem::shim {

/// Larger handles cost the driver less, and fit fewer of another program's blocks. From 512 MiB on
/// a peer maps them slower.
inline constexpr std::uint64_t kLargestPart = 256ULL << 20U;
/// A block that would have fewer is one allocation.
inline constexpr std::uint64_t kFewestParts = 2;

/// Returns the size of the parts of a block of `size` bytes, on a device with so much `memory`. It
/// is a power of two, so large that no block needs more parts than amemd gives in one answer. 0:
/// the block is one allocation.
std::uint64_t part_of(std::uint64_t size, std::uint64_t memory);

}  // namespace amem::shim
