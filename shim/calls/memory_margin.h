// The margin of memory that the program's own allocations leave free on their device, for what is
// allocated by other means. Plain functions; any thread.
#pragma once

#include <cstdint>

namespace amem::shim {

/// 0: none. Until then TMS_MEMORY_MARGIN_BYTES holds.
void set_memory_margin(std::uint64_t bytes);
/// Whether the calling thread's device has so much free, and the margin besides.
bool within_memory_margin(std::uint64_t size);

}  // namespace amem::shim
