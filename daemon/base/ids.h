// The names of things: numbers that are never used twice in the broker's life. A device's is its
// UUID (common/protocol.h).
#pragma once

#include <cstdint>

namespace amem {

using AllocationId = std::uint64_t;
using RankId = std::uint32_t;
using GroupId = std::uint32_t;  // a group that comes back by name is another group
using SessionId = std::uint64_t;
using Epoch = std::uint64_t;  // an attempt of a group at a pause or resume

}  // namespace amem
