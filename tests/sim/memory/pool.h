// Stream-ordered memory pools: what they hold, and what of it is in use.
//
// Each allocation is a piece of physical memory of its own, rounded up to the granularity. Freed
// ones stay with the pool as far as its release threshold allows; the rest goes back at once, where
// a real pool waits for the next synchronisation. All functions REQUIRE MemoryMutex, unless they
// say otherwise.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/sim/memory/physical.h"

namespace sim {

struct Pool {
  int physical = 0;  // device
  bool is_default = false;
  bool destroyed = false;  // goes when its last allocation does
  uint64_t release_threshold = 0;
  uint64_t used = 0;
  uint64_t used_high = 0;
  uint64_t cached = 0;
  uint64_t reserved_high = 0;
  std::map<int, int> reuse;                 // the policies, which change nothing here
  std::map<int, CUmemAccess_flags> access;  // of other devices, which reach everything anyway
  std::vector<std::shared_ptr<Physical>> free;

  uint64_t reserved() const { return used + cached; }
};

/// Pools are never deleted, so that a stale handle is known for what it is. Null: no such pool, or
/// it is destroyed.
Pool* FindPool(CUmemoryPool handle);
CUmemoryPool AddPool(int physical);
CUmemoryPool DefaultPool(int physical);
/// What cuMemAllocAsync takes from; null sets it to the default.
CUmemoryPool CurrentPool(int physical);
void SetCurrentPool(int physical, CUmemoryPool handle);
void DestroyPool(CUmemoryPool handle);
/// Gives freed memory back until no more than `bytes` are reserved.
void TrimPool(Pool& pool, uint64_t bytes);

/// Takes MemoryMutex itself.
CUresult AllocateFromPool(CUmemoryPool handle, size_t bytes, CUdeviceptr* out);
/// False: the address is no pool's allocation.
bool FreePoolMemory(uintptr_t address);

}  // namespace sim
