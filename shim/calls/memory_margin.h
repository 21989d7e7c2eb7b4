// What is free on a device, for the program; and the margin that the program's own allocations
// leave free there, for what is allocated by other means. Plain functions; any thread.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace amem::shim {

using MemGetInfo = CUresult(std::size_t* free, std::size_t* total);
/// What the driver's cuMemGetInfo gives for the calling thread's context, once freed memory is
/// free; and memory that waits for a resume counts as free, because amemd closes it for who lacks
/// memory.
CUresult memory_info(MemGetInfo* driver, std::size_t* free, std::size_t* total);

/// 0: none. Until then TMS_MEMORY_MARGIN_BYTES holds.
void set_memory_margin(std::uint64_t bytes);
/// Whether the calling thread's device has so much free, and the margin besides.
bool within_memory_margin(std::uint64_t size);

}  // namespace amem::shim
