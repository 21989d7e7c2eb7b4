// Arrays: device memory without addresses. They occupy what their elements need and can be made and
// destroyed; nothing reads or writes them. All functions REQUIRE MemoryMutex.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "tests/sim/memory/physical.h"

namespace sim {

/// A handle for arrays and mipmapped arrays alike, never used twice.
uint64_t AddArray(std::shared_ptr<Physical> memory, CUcontext context);
bool RemoveArray(uint64_t handle);
/// The context goes away.
void RemoveArraysOf(CUcontext context);

}  // namespace sim
