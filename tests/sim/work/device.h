// Device ordinals of this process and of the node.
#pragma once

#include <cuda.h>

namespace sim {

/// Translates an ordinal of this process to the physical one; false if there is no such device. Any
/// thread.
bool FindDevice(CUdevice device, int* physical);

}  // namespace sim
