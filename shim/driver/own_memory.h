// OwnMemory: device memory that this process makes itself, for the broker to keep. The driver binds
// such memory to multicast objects, and refuses what the process has imported.
//
// Stateless; any thread.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "common/driver.h"
#include "common/fd.h"

namespace amem::shim {

/// What brokered memory of a device is asked for as, whoever makes it.
CUmemAllocationProp brokered_properties(int device, bool gpu_direct_rdma);

struct OwnMemory {
  CUmemGenericAllocationHandle handle = 0;  // the caller's to release
  Fd fd;                                    // for the broker
};
/// The driver's refusal, of which nothing is left: CUDA_ERROR_OUT_OF_MEMORY, or another.
CUresult make_own_memory(const Driver& driver, int device, bool gpu_direct_rdma, std::uint64_t size,
                         OwnMemory& made);

}  // namespace amem::shim
