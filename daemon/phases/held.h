// Held: whether an operation has others to wait for. Plain value.
#pragma once

#include <cstdint>

namespace amem {

/// If so it must not release, or open, before it is told to go on. kAbroad: other nodes, too; then
/// its cut is taken over all of them, by somebody else.
enum class Held : std::uint8_t { kNo, kHere, kAbroad };

}  // namespace amem
