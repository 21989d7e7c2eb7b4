// Descriptors of the driver's that one puppet passes to another through a socket in a directory.
//
// Stateless; throws workload::Failure.
#pragma once

#include <cuda.h>

#include <string>
#include <thread>

#include "common/fd.h"

namespace amem::puppet {

/// Exports the handle and gives the descriptor to the first who asks, in a thread that then ends.
std::thread Offer(CUmemGenericAllocationHandle handle, const std::string& directory);
/// Asks for a descriptor, at most 20 s, and imports it.
CUmemGenericAllocationHandle Take(const std::string& directory);

}  // namespace amem::puppet
