// What is known of an address.
#include <utility>

#include "tests/sim/entry/api.h"
#include "tests/sim/memory/address_space.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/context.h"

namespace sim {
namespace {

using MemoryLock = std::lock_guard<std::mutex>;

CUresult AddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  {
    const Lock lock = LockDriver();
    Context* context = nullptr;
    const CUresult result = CurrentContext(&context);
    if (result != CUDA_SUCCESS) return result;
  }
  const MemoryLock lock(MemoryMutex());
  const Range* const range = FindRange(address);
  if (range == nullptr || range->kind == RangeKind::kHostRegistered) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = range->base;
  if (size != nullptr) *size = range->bytes;
  return CUDA_SUCCESS;
}

template <typename T>
CUresult Put(void* data, T value) {
  *static_cast<T*>(data) = value;
  return CUDA_SUCCESS;
}

// Of mapped memory the range is the reservation; the mapping has attributes of its own.
std::pair<uintptr_t, size_t> WholeRange(const Range& range) {
  std::pair<uintptr_t, size_t> whole(range.base, range.bytes);
  if (range.kind == RangeKind::kMapping) FindReservation(range.base, &whole.first, &whole.second);
  return whole;
}

CUresult AttributeOf(const Range& range, void* data, CUpointer_attribute attribute,
                     CUdeviceptr address) {
  const auto whole = WholeRange(range);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // Memory that is mapped, or a pool's, belongs to no context.
      return Put<CUcontext>(data, range.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Put<unsigned>(data, range.on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return Put<CUdeviceptr>(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (range.on_device() && range.kind != RangeKind::kManaged) return CUDA_ERROR_INVALID_VALUE;
      return Put<void*>(data, reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return Put<unsigned>(data, range.sync_memops ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return Put<unsigned>(data, range.kind == RangeKind::kManaged ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return Put<unsigned>(data, range.kind == RangeKind::kDevice ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return Put<CUmemoryPool>(data, range.pool);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return Put<unsigned long long>(data, range.id);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Put<int>(data, range.on_device() ? VisibleOrdinal(range.device) : CU_DEVICE_INVALID);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Put<CUdeviceptr>(data, whole.first);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Put<size_t>(data, whole.second);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return Put<unsigned>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Put<unsigned long long>(
          data, range.allocation == nullptr
                    ? 0U
                    : static_cast<unsigned>(range.allocation->properties.requestedHandleTypes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return Put<CUdeviceptr>(data, range.base);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return Put<size_t>(data, range.bytes);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult Attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  const Range* const range = FindRange(address);
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return AttributeOf(*range, data, attribute, address);
}

CUresult SetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const MemoryLock lock(MemoryMutex());
  const bool known = SetSyncMemops(address, *static_cast<const unsigned*>(value) != 0);
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Unlike the single query this one succeeds for an unknown address, and reports "nothing" for each
// attribute.
CUresult Attributes(unsigned count, CUpointer_attribute* attributes, void** data,
                    CUdeviceptr address) {
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  const Range* const range = FindRange(address);
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (range != nullptr) {
      const CUresult result = AttributeOf(*range, data[i], attributes[i], address);
      if (result == CUDA_ERROR_NOT_SUPPORTED) return result;
      if (result == CUDA_SUCCESS) continue;
    }
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        Put<int>(data[i], CU_DEVICE_INVALID);
        break;
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      case CU_POINTER_ATTRIBUTE_MAPPED:
      case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        Put<unsigned>(data[i], 0);
        break;
      case CU_POINTER_ATTRIBUTE_CONTEXT:
      case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        Put<uint64_t>(data[i], 0);
        break;
      default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_CALL(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t* size, CUdeviceptr ptr),
         AddressRange(base, size, ptr))
SIM_CALL(cuPointerGetAttribute, (void* data, CUpointer_attribute attribute, CUdeviceptr ptr),
         Attribute(data, attribute, ptr))
SIM_CALL(cuPointerGetAttributes,
         (unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr ptr),
         Attributes(count, attributes, data, ptr))
SIM_CALL(cuPointerSetAttribute, (const void* value, CUpointer_attribute attribute, CUdeviceptr ptr),
         SetAttribute(value, attribute, ptr))
