// Stream-ordered allocation, its pools, and what graphs hold.
#include <memory>
#include <mutex>

#include "tests/sim/entry/api.h"
#include "tests/sim/memory/address_space.h"
#include "tests/sim/memory/pool.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/device.h"
#include "tests/sim/work/stream.h"

namespace sim {
namespace {

using MemoryLock = std::lock_guard<std::mutex>;

template <typename Body>
CUresult WithDevice(CUdevice device, const Body& body) {
  int physical = 0;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  const MemoryLock lock(MemoryMutex());
  return body(physical);
}

CUresult GetPool(CUmemoryPool* out, CUdevice device, CUmemoryPool (*find)(int)) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithDevice(device, [&](int physical) {
    *out = find(physical);
    return CUDA_SUCCESS;
  });
}

CUresult SetPool(CUdevice device, CUmemoryPool handle) {
  return WithDevice(device, [&](int physical) {
    const Pool* const pool = FindPool(handle);
    if (pool == nullptr || pool->physical != physical) return CUDA_ERROR_INVALID_VALUE;
    SetCurrentPool(physical, handle);
    return CUDA_SUCCESS;
  });
}

CUresult CreatePool(CUmemoryPool* out, const CUmemPoolProps* properties) {
  if (out == nullptr || properties == nullptr ||
      properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Nothing is exported here, but a program may ask for a pool of which that is possible.
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
       properties->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return WithDevice(properties->location.id, [&](int physical) {
    *out = AddPool(physical);
    return CUDA_SUCCESS;
  });
}

template <typename Body>
CUresult WithPool(CUmemoryPool handle, const Body& body) {
  const MemoryLock lock(MemoryMutex());
  Pool* const pool = FindPool(handle);
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : body(*pool);
}

CUresult GetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithPool(handle, [&](Pool& pool) {
    auto& number = *static_cast<cuuint64_t*>(value);
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *static_cast<int*>(value) = pool.reuse.try_emplace(attribute, 1).first->second;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        number = pool.release_threshold;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        number = pool.reserved();
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        number = pool.reserved_high;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        number = pool.used;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        number = pool.used_high;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult SetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithPool(handle, [&](Pool& pool) {
    const cuuint64_t number =
        attribute >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? *static_cast<const cuuint64_t*>(value) : 0;
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool.reuse[attribute] = *static_cast<const int*>(value);
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool.release_threshold = number;
        return CUDA_SUCCESS;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        // The high marks can be reset, to nothing else than 0.
        if (number != 0) return CUDA_ERROR_INVALID_VALUE;
        (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? pool.used_high : pool.reserved_high) =
            attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? pool.used : pool.reserved();
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult FindAccessor(const CUmemLocation& location, int* physical) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  return FindDevice(location.id, physical) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult SetPoolAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t count) {
  if (map == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  return WithPool(handle, [&](Pool& pool) {
    for (size_t i = 0; i < count; ++i) {
      int physical = 0;
      const CUresult result = FindAccessor(map[i].location, &physical);
      if (result != CUDA_SUCCESS) return result;
      if (physical == pool.physical && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      pool.access[physical] = map[i].flags;
    }
    return CUDA_SUCCESS;
  });
}

CUresult GetPoolAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  int physical = 0;
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = FindAccessor(*location, &physical);
  if (result != CUDA_SUCCESS) return result;
  return WithPool(handle, [&](Pool& pool) {
    *flags = physical == pool.physical ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : pool.access[physical];
    return CUDA_SUCCESS;
  });
}

// Null: the current pool of the stream's device.
CUresult AllocAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, StreamRef ref) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  int physical = 0;
  {
    const Lock lock = LockDriver();
    std::shared_ptr<Stream> stream;
    const CUresult result = FindStream(ref, &stream);
    if (result != CUDA_SUCCESS) return result;
    // It would become an allocation of the graph, which there is not.
    if (stream->capture != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    physical = stream->context().physical;
  }
  if (pool == nullptr) {
    const MemoryLock lock(MemoryMutex());
    pool = CurrentPool(physical);
  }
  return AllocateFromPool(pool, bytes, out);
}

CUresult FreeAsync(CUdeviceptr address, StreamRef ref) {
  const Lock lock = LockDriver();
  std::shared_ptr<Stream> stream;
  const CUresult result = FindStream(ref, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->capture != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  bool pooled = false;
  {
    const MemoryLock memory_lock(MemoryMutex());
    const Range* const range = FindRange(address);
    if (range == nullptr || range->base != address) return CUDA_ERROR_INVALID_VALUE;
    pooled = range->kind == RangeKind::kPool;
    // It frees what cuMemAlloc gave, too.
    if (!pooled && range->kind != RangeKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  }
  Enqueue(stream, [address, pooled] {
    const MemoryLock memory_lock(MemoryMutex());
    const bool freed = pooled ? FreePoolMemory(address) : RemoveRange(address, RangeKind::kDevice);
    return freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device),
         GetPool(pool, device, &DefaultPool))
SIM_CALL(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device),
         GetPool(pool, device, &CurrentPool))
SIM_CALL(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), SetPool(device, pool))
SIM_CALL(cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool pool),
         location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
                 type != CU_MEM_ALLOCATION_TYPE_PINNED
             ? CUDA_ERROR_INVALID_VALUE
             : SetPool(location->id, pool))
SIM_CALL(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps* properties),
         CreatePool(pool, properties))
SIM_CALL(cuMemPoolDestroy, (CUmemoryPool pool), WithPool(pool, [&](Pool& found) {
           if (found.is_default) return CUDA_ERROR_INVALID_VALUE;
           DestroyPool(pool);
           return CUDA_SUCCESS;
         }))
SIM_CALL(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void* value),
         GetAttribute(pool, attribute, value))
SIM_CALL(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void* value),
         SetAttribute(pool, attribute, value))
SIM_CALL(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc* map, size_t count),
         SetPoolAccess(pool, map, count))
SIM_CALL(cuMemPoolGetAccess,
         (CUmemAccess_flags * flags, CUmemoryPool pool, CUmemLocation* location),
         GetPoolAccess(flags, pool, location))
SIM_CALL(cuMemPoolTrimTo, (CUmemoryPool pool, size_t bytes), WithPool(pool, [&](Pool& found) {
           TrimPool(found, bytes);
           return CUDA_SUCCESS;
         }))
SIM_CALL_PTSZ(cuMemAllocAsync, (CUdeviceptr * ptr, size_t bytes, CUstream stream),
              AllocAsync(ptr, bytes, nullptr, {stream, kDefault}))
SIM_CALL_PTSZ(cuMemAllocFromPoolAsync,
              (CUdeviceptr * ptr, size_t bytes, CUmemoryPool pool, CUstream stream),
              pool == nullptr ? CUDA_ERROR_INVALID_VALUE
                              : AllocAsync(ptr, bytes, pool, {stream, kDefault}))
SIM_CALL_PTSZ(cuMemFreeAsync, (CUdeviceptr ptr, CUstream stream),
              FreeAsync(ptr, {stream, kDefault}))

// Graphs of this driver own no memory.
SIM_CALL(cuDeviceGetGraphMemAttribute,
         (CUdevice device, CUgraphMem_attribute attribute, void* value),
         WithDevice(device, [&](int) {
           if (value == nullptr || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
             return CUDA_ERROR_INVALID_VALUE;
           }
           *static_cast<cuuint64_t*>(value) = 0;
           return CUDA_SUCCESS;
         }))
