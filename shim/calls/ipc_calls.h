// What cuIpcCloseMemHandle leaves for later. Plain function; the program's threads.
#pragma once

#include <cstdint>

namespace amem::shim {

/// Unmaps what was closed while captures were open, unless more than this many still are (as
/// Heap::release_deferred). What cannot go now goes with a later close or open.
void close_deferred(std::uint32_t captures);

}  // namespace amem::shim
