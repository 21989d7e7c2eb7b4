// What the driver's calls for memory take (AMEM_SIM_DRIVER_TIMES). They wait for each other, over
// all processes and devices of the node, as those of a real driver do. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sim {

enum class MemoryCall : std::uint8_t { kCreate, kMap, kUnmap, kFree };
/// Takes the time of such a call for so many bytes; none without the variable. REQUIRES: no lock.
void TakeDriverTime(MemoryCall call, size_t bytes);

}  // namespace sim
