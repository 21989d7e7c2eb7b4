// Memory calls older than virtual memory management: cuMemAlloc, pinned host memory, memory
// information.
#include <memory>
#include <utility>

#include "tests/sim/entry/api.h"
#include "tests/sim/memory/address_space.h"
#include "tests/sim/memory/physical.h"
#include "tests/sim/memory/pool.h"
#include "tests/sim/node/driver_times.h"
#include "tests/sim/node/node.h"
#include "tests/sim/node/usage.h"
#include "tests/sim/work/capture.h"
#include "tests/sim/work/context.h"

namespace sim {
namespace {

using MemoryLock = std::lock_guard<std::mutex>;

// The current context, if the call may be made while captures are under way.
CUresult EnterAllocation(Context** context) {
  const Lock lock = LockDriver();
  const CUresult result = CurrentContext(context);
  return result != CUDA_SUCCESS ? result : CheckUnsafeCall();
}

CUresult Alloc(CUdeviceptr* out, size_t bytes, RangeKind kind = RangeKind::kDevice) {
  Context* context = nullptr;
  CUresult result = EnterAllocation(&context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > Node().memory) return CUDA_ERROR_OUT_OF_MEMORY;
  TakeDriverTime(MemoryCall::kCreate, bytes);
  constexpr size_t kPage = 4096;
  Range range;
  result =
      Physical::Create(context->physical, (bytes + kPage - 1) & ~(kPage - 1), 0, &range.memory);
  if (result != CUDA_SUCCESS) return result;
  range.bytes = bytes;
  range.kind = kind;
  range.context = context->handle();
  const MemoryLock lock(MemoryMutex());
  uintptr_t base = 0;
  result = AddDeviceMemory(std::move(range), &base);
  if (result == CUDA_SUCCESS) *out = base;
  return result;
}

// Rows begin at multiples of 512 bytes, as on real devices.
CUresult AllocPitch(CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                    unsigned element) {
  constexpr size_t kAlignment = 512;
  if (pitch == nullptr || width == 0 || height == 0 ||
      (element != 4 && element != 8 && element != 16)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (width > Node().memory || height > Node().memory) return CUDA_ERROR_OUT_OF_MEMORY;
  const size_t row = (width + kAlignment - 1) & ~(kAlignment - 1);
  const CUresult result = Alloc(out, row * height);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

CUresult AllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  return Alloc(out, bytes, RangeKind::kManaged);
}

CUresult Free(CUdeviceptr address) {
  Context* context = nullptr;
  CUresult result = EnterAllocation(&context);
  if (result != CUDA_SUCCESS || address == 0) return result;
  {
    // As the real one: freeing waits for the device, so that nothing in flight loses its memory.
    Lock lock = LockDriver();
    result = SynchronizeDevice(lock, context->physical);
    if (result != CUDA_SUCCESS) return result;
  }
  size_t bytes = 0;
  {
    const MemoryLock lock(MemoryMutex());
    if (const Range* const range = FindRange(address); range != nullptr) bytes = range->bytes;
  }
  TakeDriverTime(MemoryCall::kFree, bytes);
  const MemoryLock lock(MemoryMutex());
  return RemoveRange(address, RangeKind::kDevice) || RemoveRange(address, RangeKind::kManaged) ||
                 FreePoolMemory(address)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult HostAlloc(void** out, size_t bytes, unsigned flags) {
  Context* context = nullptr;
  CUresult result = EnterAllocation(&context);
  if (result != CUDA_SUCCESS) return result;
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  uintptr_t base = 0;
  result = AddHostMemory(bytes, context->handle(), flags, &base);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(base);
  return result;
}

CUresult FreeHost(void* p) {
  Context* context = nullptr;
  const CUresult result = EnterAllocation(&context);
  if (result != CUDA_SUCCESS || p == nullptr) return result;
  {
    Lock lock = LockDriver();
    SynchronizeDevice(lock, context->physical);
  }
  const MemoryLock lock(MemoryMutex());
  const auto base = reinterpret_cast<uintptr_t>(p);
  return RemoveRange(base, RangeKind::kHostAllocated) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult HostRegister(void* p, size_t bytes, unsigned flags) {
  Context* context = nullptr;
  const CUresult result = EnterAllocation(&context);
  if (result != CUDA_SUCCESS) return result;
  const MemoryLock lock(MemoryMutex());
  return RegisterHostMemory(reinterpret_cast<uintptr_t>(p), bytes, context->handle(), flags);
}

CUresult HostUnregister(void* p) {
  Context* context = nullptr;
  const CUresult result = EnterAllocation(&context);
  if (result != CUDA_SUCCESS) return result;
  const MemoryLock lock(MemoryMutex());
  return RemoveRange(reinterpret_cast<uintptr_t>(p), RangeKind::kHostRegistered)
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

// Pinned host memory has the same address on the device.
CUresult HostDevicePointer(CUdeviceptr* out, void* p, unsigned flags) {
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  const Range* const range = FindRange(reinterpret_cast<uintptr_t>(p));
  if (range == nullptr || range->on_device()) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<uintptr_t>(p);
  return CUDA_SUCCESS;
}

CUresult HostFlags(unsigned* out, void* p) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const MemoryLock lock(MemoryMutex());
  const Range* const range = FindRange(reinterpret_cast<uintptr_t>(p));
  if (range == nullptr || range->kind != RangeKind::kHostAllocated) return CUDA_ERROR_INVALID_VALUE;
  *out = range->host_flags;
  return CUDA_SUCCESS;
}

CUresult Info(size_t* free, size_t* total) {
  int physical = 0;
  {
    const Lock lock = LockDriver();
    Context* context = nullptr;
    const CUresult result = CurrentContext(&context);
    if (result != CUDA_SUCCESS) return result;
    physical = context->physical;
  }
  const uint64_t capacity = Node().memory;
  const uint64_t used = UsedBytes()[static_cast<size_t>(physical)];
  if (free != nullptr) *free = used < capacity ? capacity - used : 0;
  if (total != nullptr) *total = capacity;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_CALL(cuMemGetInfo_v2, (size_t * free, size_t* total), Info(free, total))
SIM_CALL(cuMemAlloc_v2, (CUdeviceptr * ptr, size_t bytes), Alloc(ptr, bytes))
SIM_CALL(cuMemAllocPitch_v2,
         (CUdeviceptr * ptr, size_t* pitch, size_t width, size_t height, unsigned element),
         AllocPitch(ptr, pitch, width, height, element))
SIM_CALL(cuMemAllocManaged, (CUdeviceptr * ptr, size_t bytes, unsigned flags),
         AllocManaged(ptr, bytes, flags))
SIM_CALL(cuMemFree_v2, (CUdeviceptr ptr), Free(ptr))
SIM_CALL(cuMemAllocHost_v2, (void** p, size_t bytes), HostAlloc(p, bytes, 0))
SIM_CALL(cuMemHostAlloc, (void** p, size_t bytes, unsigned flags), HostAlloc(p, bytes, flags))
SIM_CALL(cuMemFreeHost, (void* p), FreeHost(p))
SIM_CALL(cuMemHostRegister, (void* p, size_t bytes, unsigned flags), HostRegister(p, bytes, flags))
SIM_CALL(cuMemHostRegister_v2, (void* p, size_t bytes, unsigned flags),
         HostRegister(p, bytes, flags))
SIM_CALL(cuMemHostUnregister, (void* p), HostUnregister(p))
SIM_CALL(cuMemHostGetDevicePointer_v2, (CUdeviceptr * ptr, void* p, unsigned flags),
         HostDevicePointer(ptr, p, flags))
SIM_CALL(cuMemHostGetFlags, (unsigned* flags, void* p), HostFlags(flags, p))
