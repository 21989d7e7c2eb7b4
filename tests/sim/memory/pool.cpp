#include "tests/sim/memory/pool.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tests/sim/memory/address_space.h"
#include "tests/sim/node/node.h"

namespace sim {
namespace {

using Pools = std::map<CUmemoryPool, std::unique_ptr<Pool>>;

Pools& AllPools() {
  static auto* const pools = new Pools();
  return *pools;
}

// The memory of allocations in use: the pool takes it back when they are freed.
std::unordered_map<uintptr_t, std::shared_ptr<Physical>>& InUse() {
  static auto* const in_use = new std::unordered_map<uintptr_t, std::shared_ptr<Physical>>();
  return *in_use;
}

std::array<CUmemoryPool, kMaxDevices> g_default{};
std::array<CUmemoryPool, kMaxDevices> g_current{};

}  // namespace

Pool* FindPool(CUmemoryPool handle) {
  const auto it = AllPools().find(handle);
  return it == AllPools().end() || it->second->destroyed ? nullptr : it->second.get();
}

CUmemoryPool AddPool(int physical) {
  static uint64_t last_handle = 0x6d000000;
  const auto handle = reinterpret_cast<CUmemoryPool>(last_handle += 16);
  auto pool = std::make_unique<Pool>();
  pool->physical = physical;
  AllPools().emplace(handle, std::move(pool));
  return handle;
}

CUmemoryPool DefaultPool(int physical) {
  CUmemoryPool& handle = g_default[static_cast<size_t>(physical)];
  if (handle == nullptr) {
    handle = AddPool(physical);
    FindPool(handle)->is_default = true;
  }
  return handle;
}

CUmemoryPool CurrentPool(int physical) {
  const CUmemoryPool handle = g_current[static_cast<size_t>(physical)];
  return FindPool(handle) != nullptr ? handle : DefaultPool(physical);
}

void SetCurrentPool(int physical, CUmemoryPool handle) {
  g_current[static_cast<size_t>(physical)] = handle;
}

void DestroyPool(CUmemoryPool handle) {
  Pool& pool = *FindPool(handle);
  pool.destroyed = true;
  TrimPool(pool, 0);
}

void TrimPool(Pool& pool, uint64_t bytes) {
  while (!pool.free.empty() && pool.reserved() > bytes) {
    pool.cached -= pool.free.back()->bytes();
    pool.free.pop_back();
  }
}

CUresult AllocateFromPool(CUmemoryPool handle, size_t bytes, CUdeviceptr* out) {
  if (bytes > Node().memory) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t unit = Node().granularity;
  const uint64_t rounded = (bytes + unit - 1) / unit * unit;
  std::shared_ptr<Physical> memory;
  int physical = 0;
  {
    const std::lock_guard<std::mutex> lock(MemoryMutex());
    Pool* const pool = FindPool(handle);
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    physical = pool->physical;
    const auto fits = std::find_if(pool->free.begin(), pool->free.end(),
                                   [&](const auto& each) { return each->bytes() == rounded; });
    if (fits != pool->free.end()) {
      memory = std::move(*fits);
      pool->free.erase(fits);
      pool->cached -= rounded;
    }
  }
  if (memory == nullptr) {
    const CUresult result = Physical::Create(physical, rounded, 0, &memory);
    if (result != CUDA_SUCCESS) return result;
  }
  Range range;
  range.bytes = bytes;
  range.kind = RangeKind::kPool;
  range.pool = handle;
  range.memory = memory;
  const std::lock_guard<std::mutex> lock(MemoryMutex());
  Pool& pool = *AllPools().at(handle);
  uintptr_t base = 0;
  const CUresult result = AddDeviceMemory(std::move(range), &base);
  if (result != CUDA_SUCCESS) return result;
  InUse().emplace(base, std::move(memory));
  pool.used += rounded;
  pool.used_high = std::max(pool.used_high, pool.used);
  pool.reserved_high = std::max(pool.reserved_high, pool.reserved());
  *out = base;
  return CUDA_SUCCESS;
}

bool FreePoolMemory(uintptr_t address) {
  const auto it = InUse().find(address);
  if (it == InUse().end()) return false;
  Pool& pool = *AllPools().at(FindRange(address)->pool);
  RemoveRange(address, RangeKind::kPool);
  const uint64_t bytes = it->second->bytes();
  pool.used -= bytes;
  pool.cached += bytes;
  pool.free.push_back(std::move(it->second));
  InUse().erase(it);
  TrimPool(pool, pool.destroyed ? 0 : pool.release_threshold);
  return true;
}

}  // namespace sim
