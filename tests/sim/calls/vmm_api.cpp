// Virtual memory management: physical handles, reservations, mappings, access.
#include <fcntl.h>

#include <memory>
#include <vector>

#include "tests/sim/entry/api.h"
#include "tests/sim/memory/address_space.h"
#include "tests/sim/memory/multicast.h"
#include "tests/sim/memory/physical.h"
#include "tests/sim/node/driver_times.h"
#include "tests/sim/node/node.h"
#include "tests/sim/node/usage.h"
#include "tests/sim/work/device.h"

namespace sim {
namespace {

using MemoryLock = std::lock_guard<std::mutex>;

bool IsHost(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

// The simulated host has one NUMA node.
CUresult FindLocation(const CUmemLocation& location, int* physical) {
  if (IsHost(location.type)) {
    *physical = kHostMemory;
    const bool named = location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    return named && location.id != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  }
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  return FindDevice(location.id, physical) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CheckProperties(const CUmemAllocationProp& prop, int* physical) {
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  const auto types = static_cast<unsigned>(prop.requestedHandleTypes);
  if ((types & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC}) !=
      0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = FindLocation(prop.location, physical);
  if (result != CUDA_SUCCESS) return result;
  // No fabric manager here, as on most single hosts.
  return (types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

CUresult Create(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* prop,
                unsigned long long flags) {
  if (out == nullptr || prop == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  int physical = 0;
  CUresult result = CheckProperties(*prop, &physical);
  if (result != CUDA_SUCCESS) return result;
  if (bytes == 0 || bytes % Node().granularity != 0) return CUDA_ERROR_INVALID_VALUE;
  TakeDriverTime(MemoryCall::kCreate, bytes);
  std::shared_ptr<Physical> memory;
  const unsigned memory_flags =
      prop->allocFlags.gpuDirectRDMACapable != 0 ? MemoryName::kRdmaCapable : 0;
  result = Physical::Create(physical, bytes, memory_flags, &memory);
  if (result != CUDA_SUCCESS) return result;
  const MemoryLock lock(MemoryMutex());
  *out = AddAllocation(*prop, std::move(memory));
  return CUDA_SUCCESS;
}

CUresult Export(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                unsigned long long flags) {
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  const std::shared_ptr<Allocation> allocation = FindAllocation(handle);
  // An imported handle has no requested types, so it fails here too.
  if (allocation == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (allocation->properties.requestedHandleTypes & type) == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int held =
      allocation->multicast != nullptr ? allocation->multicast->fd() : allocation->memory->fd();
  const int fd = fcntl(held, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(out) = fd;
  return CUDA_SUCCESS;
}

CUresult Import(CUmemGenericAllocationHandle* out, void* os_handle,
                CUmemAllocationHandleType type) {
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_PERMITTED;
  if (out == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Physical> memory;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(os_handle));
  if (auto object = MulticastObject::Import(fd); object != nullptr) {
    const MemoryLock lock(MemoryMutex());
    *out = AddMulticast(std::move(object));
    return CUDA_SUCCESS;
  }
  const CUresult result = Physical::Import(fd, &memory);
  if (result != CUDA_SUCCESS) return result;
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = memory->device() == kHostMemory ? CU_MEM_LOCATION_TYPE_HOST_NUMA
                                                       : CU_MEM_LOCATION_TYPE_DEVICE;
  if (memory->device() != kHostMemory) {
    // Memory of a device that CUDA_VISIBLE_DEVICES hides can be imported; it has no ordinal here.
    const int visible = VisibleOrdinal(memory->device());
    prop.location.id = visible >= 0 ? visible : CU_DEVICE_INVALID;
  }
  prop.allocFlags.gpuDirectRDMACapable = (memory->flags() & MemoryName::kRdmaCapable) != 0 ? 1 : 0;
  const MemoryLock lock(MemoryMutex());
  *out = AddAllocation(prop, std::move(memory), true);
  return CUDA_SUCCESS;
}

CUresult Retain(CUmemGenericAllocationHandle* out, void* address) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  const Range* const range = FindRange(reinterpret_cast<uintptr_t>(address));
  if (range == nullptr || range->kind != RangeKind::kMapping) return CUDA_ERROR_INVALID_VALUE;
  RetainAllocation(range->allocation);
  *out = range->allocation->handle;
  return CUDA_SUCCESS;
}

CUresult Properties(CUmemAllocationProp* out, CUmemGenericAllocationHandle handle) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  const std::shared_ptr<Allocation> allocation = FindAllocation(handle);
  if (allocation == nullptr || allocation->memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = allocation->properties;
  return CUDA_SUCCESS;
}

CUresult Granularity(size_t* out, const CUmemAllocationProp* prop) {
  int physical = 0;
  if (out == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = FindLocation(prop->location, &physical);
  if (result == CUDA_SUCCESS) *out = Node().granularity;
  return result;
}

CUresult Reserve(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr hint,
                 unsigned long long flags) {
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  uintptr_t base = 0;
  const CUresult result = ReserveAddresses(bytes, alignment, hint, &base);
  if (result == CUDA_SUCCESS) *out = base;
  return result;
}

CUresult Map(CUdeviceptr base, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (offset != 0) return CUDA_ERROR_NOT_SUPPORTED;
  std::shared_ptr<Allocation> allocation;
  {
    const MemoryLock lock(MemoryMutex());
    allocation = FindAllocation(handle);
  }
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->multicast != nullptr) allocation->multicast->AwaitTeam();
  TakeDriverTime(MemoryCall::kMap, bytes);
  const MemoryLock lock(MemoryMutex());
  return MapAllocation(base, bytes, allocation);
}

CUresult Unmap(CUdeviceptr base, size_t bytes) {
  TakeDriverTime(MemoryCall::kUnmap, bytes);
  const MemoryLock lock(MemoryMutex());
  return UnmapRange(base, bytes);
}

CUresult SetAccess(CUdeviceptr base, size_t bytes, const CUmemAccessDesc* descriptors,
                   size_t count) {
  if (descriptors == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Access> access;
  bool host = false;
  for (size_t i = 0; i < count; ++i) {
    Access one;
    const CUresult result = FindLocation(descriptors[i].location, &one.physical);
    if (result != CUDA_SUCCESS) return result;
    host |= one.physical == kHostMemory;
    // All ways to name the host are one way, and so they are found again.
    one.type =
        one.physical == kHostMemory ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    one.flags = descriptors[i].flags;
    if (one.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && one.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        one.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    access.push_back(one);
  }
  const MemoryLock lock(MemoryMutex());
  // The host cannot be given a discrete device's memory.
  const Range* const first = FindRange(base);
  if (host && first != nullptr && first->on_device()) return CUDA_ERROR_NOT_SUPPORTED;
  return SetRangeAccess(base, bytes, access);
}

CUresult GetAccess(unsigned long long* out, const CUmemLocation* location, CUdeviceptr address) {
  int physical = 0;
  if (out == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = FindLocation(*location, &physical);
  if (result != CUDA_SUCCESS) return result;
  const MemoryLock lock(MemoryMutex());
  const Range* const range = FindRange(address);
  if (range == nullptr || range->kind != RangeKind::kMapping) return CUDA_ERROR_INVALID_VALUE;
  *out = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  for (const Access& access : range->access) {
    if (access.physical == physical) *out = access.flags;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_CALL(cuMemCreate,
         (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp* prop,
          unsigned long long flags),
         Create(handle, size, prop, flags))
SIM_CALL(cuMemRelease, (CUmemGenericAllocationHandle handle), [&] {
  const MemoryLock lock(MemoryMutex());
  return ReleaseAllocation(handle);
}())
SIM_CALL(cuMemExportToShareableHandle,
         (void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
          unsigned long long flags),
         Export(shareable, handle, type, flags))
SIM_CALL(cuMemImportFromShareableHandle,
         (CUmemGenericAllocationHandle * handle, void* os_handle, CUmemAllocationHandleType type),
         Import(handle, os_handle, type))
SIM_CALL(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void* address),
         Retain(handle, address))
SIM_CALL(cuMemGetAllocationPropertiesFromHandle,
         (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle),
         Properties(prop, handle))
SIM_CALL(cuMemGetAllocationGranularity,
         (size_t * granularity, const CUmemAllocationProp* prop, CUmemAllocationGranularity_flags),
         Granularity(granularity, prop))
SIM_CALL(cuMemAddressReserve,
         (CUdeviceptr * ptr, size_t size, size_t alignment, CUdeviceptr hint,
          unsigned long long flags),
         Reserve(ptr, size, alignment, hint, flags))
SIM_CALL(cuMemAddressFree, (CUdeviceptr ptr, size_t size), [&] {
  const MemoryLock lock(MemoryMutex());
  return FreeAddresses(ptr, size);
}())
SIM_CALL(cuMemMap,
         (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
          unsigned long long flags),
         Map(ptr, size, offset, handle, flags))
SIM_CALL(cuMemUnmap, (CUdeviceptr ptr, size_t size), Unmap(ptr, size))
SIM_CALL(cuMemSetAccess, (CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count),
         SetAccess(ptr, size, desc, count))
SIM_CALL(cuMemGetAccess,
         (unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr),
         GetAccess(flags, location, ptr))
