// What a checkpoint does with the process's device memory: the bytes wait in ordinary memory, and
// the addresses stay taken. REQUIRES for all: no call and no work uses memory meanwhile.
#pragma once

#include <cuda.h>

namespace sim {

/// Whether the process holds memory that a checkpoint cannot take away: imported, or a multicast
/// object.
bool HoldsSharedMemory();

/// Whether the process can never be restored: it once mapped memory of a device that it does not
/// see.
bool MappedHiddenMemory();

/// Saves the bytes of all device memory and gives it back. CUDA_ERROR_OUT_OF_MEMORY: there is no
/// place for the bytes, and nothing has changed.
CUresult GiveBackDeviceMemory();

/// Takes the memory again. CUDA_ERROR_OUT_OF_MEMORY: it does not fit, and nothing has changed.
CUresult TakeDeviceMemoryAgain();

}  // namespace sim
