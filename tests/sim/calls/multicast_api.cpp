// Multicast: objects, their teams of devices, the memory bound to them.
#include <memory>

#include "tests/sim/entry/api.h"
#include "tests/sim/entry/newer_calls.h"
#include "tests/sim/memory/address_space.h"
#include "tests/sim/memory/multicast.h"
#include "tests/sim/memory/physical.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/device.h"

namespace sim {
namespace {

using MemoryLock = std::lock_guard<std::mutex>;

CUresult CheckProperties(const CUmulticastObjectProp* prop) {
  if (prop == nullptr || prop->flags != 0 || prop->numDevices == 0 ||
      prop->numDevices > static_cast<unsigned>(Node().devices)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((prop->handleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return CUDA_ERROR_NOT_PERMITTED;
  return (prop->handleTypes & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) != 0
             ? CUDA_ERROR_INVALID_VALUE
             : CUDA_SUCCESS;
}

CUresult Create(CUmemGenericAllocationHandle* out, const CUmulticastObjectProp* prop) {
  CUresult result = CheckProperties(prop);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || prop->size == 0 || prop->size % Node().granularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<MulticastObject> object;
  result = MulticastObject::Create(*prop, &object);
  if (result != CUDA_SUCCESS) return result;
  const MemoryLock lock(MemoryMutex());
  *out = AddMulticast(std::move(object), static_cast<CUmemAllocationHandleType>(prop->handleTypes));
  return CUDA_SUCCESS;
}

// The recommended granularity differs from the minimum, so that a program that mixes them up shows.
CUresult Granularity(size_t* out, const CUmulticastObjectProp* prop,
                     CUmulticastGranularity_flags option) {
  const CUresult result = CheckProperties(prop);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = Node().granularity * (option == CU_MULTICAST_GRANULARITY_RECOMMENDED ? 2 : 1);
  return CUDA_SUCCESS;
}

std::shared_ptr<MulticastObject> FindObject(CUmemGenericAllocationHandle handle) {
  const MemoryLock lock(MemoryMutex());
  const std::shared_ptr<Allocation> allocation = FindAllocation(handle);
  return allocation != nullptr ? allocation->multicast : nullptr;
}

CUresult AddDevice(CUmemGenericAllocationHandle handle, CUdevice device) {
  const std::shared_ptr<MulticastObject> object = FindObject(handle);
  int physical = 0;
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return FindDevice(device, &physical) ? object->AddDevice(physical) : CUDA_ERROR_INVALID_DEVICE;
}

// Imported memory is refused, as the real driver is reported to do (H100, driver 610).
bool Fits(const MulticastObject& object, const Allocation& allocation) {
  return allocation.memory != nullptr && allocation.memory->device() >= 0 && !allocation.imported &&
         (!object.shareable() ||
          allocation.properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE);
}

/// The older calls name no device: memory is bound for the one that it is of. The newer ones refuse
/// another one.
constexpr CUdevice kOfMemory = -1;

template <typename Find>
CUresult Bind(CUmemGenericAllocationHandle handle, size_t at, size_t bytes,
              unsigned long long flags, CUdevice device, const Find& find) {
  const std::shared_ptr<MulticastObject> object = FindObject(handle);
  if (object == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  object->AwaitTeam();
  const MemoryLock lock(MemoryMutex());
  size_t from = 0;
  const std::shared_ptr<Allocation> allocation = find(&from);
  if (allocation == nullptr || !Fits(*object, *allocation)) return CUDA_ERROR_INVALID_VALUE;
  int physical = 0;
  if (device != kOfMemory &&
      (!FindDevice(device, &physical) || physical != allocation->memory->device())) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  return object->Bind(allocation->memory, at, from, bytes);
}

CUresult BindMemory(CUmemGenericAllocationHandle handle, size_t at,
                    CUmemGenericAllocationHandle memory, size_t from, size_t bytes,
                    unsigned long long flags, CUdevice device = kOfMemory) {
  return Bind(handle, at, bytes, flags, device, [&](size_t* out) {
    *out = from;
    return FindAllocation(memory);
  });
}

CUresult BindAddress(CUmemGenericAllocationHandle handle, size_t at, CUdeviceptr address,
                     size_t bytes, unsigned long long flags, CUdevice device = kOfMemory) {
  return Bind(handle, at, bytes, flags, device, [&](size_t* out) {
    const Range* const range = FindRange(address);
    if (range == nullptr) return std::shared_ptr<Allocation>();
    *out = address - range->base;
    return range->allocation;
  });
}

CUresult Unbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at, size_t bytes) {
  const std::shared_ptr<MulticastObject> object = FindObject(handle);
  int physical = 0;
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!FindDevice(device, &physical)) return CUDA_ERROR_INVALID_DEVICE;
  const MemoryLock lock(MemoryMutex());
  return object->Unbind(physical, at, bytes);
}

}  // namespace
}  // namespace sim

SIM_CALL(cuMulticastCreate,
         (CUmemGenericAllocationHandle * handle, const CUmulticastObjectProp* prop),
         Create(handle, prop))
SIM_CALL(cuMulticastGetGranularity,
         (size_t * granularity, const CUmulticastObjectProp* prop,
          CUmulticastGranularity_flags option),
         Granularity(granularity, prop, option))
SIM_CALL(cuMulticastAddDevice, (CUmemGenericAllocationHandle handle, CUdevice device),
         AddDevice(handle, device))
SIM_CALL(cuMulticastBindMem,
         (CUmemGenericAllocationHandle handle, size_t at, CUmemGenericAllocationHandle memory,
          size_t from, size_t bytes, unsigned long long flags),
         BindMemory(handle, at, memory, from, bytes, flags))
SIM_CALL(cuMulticastBindMem_v2,
         (CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
          CUmemGenericAllocationHandle memory, size_t from, size_t bytes, unsigned long long flags),
         BindMemory(handle, at, memory, from, bytes, flags, device))
SIM_CALL(cuMulticastBindAddr,
         (CUmemGenericAllocationHandle handle, size_t at, CUdeviceptr address, size_t bytes,
          unsigned long long flags),
         BindAddress(handle, at, address, bytes, flags))
SIM_CALL(cuMulticastBindAddr_v2,
         (CUmemGenericAllocationHandle handle, CUdevice device, size_t at, CUdeviceptr address,
          size_t bytes, unsigned long long flags),
         BindAddress(handle, at, address, bytes, flags, device))
SIM_CALL(cuMulticastUnbind,
         (CUmemGenericAllocationHandle handle, CUdevice device, size_t at, size_t bytes),
         Unbind(handle, device, at, bytes))
