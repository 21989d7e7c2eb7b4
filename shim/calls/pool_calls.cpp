// Wrappers of the calls of stream-ordered memory pools. The pools are the driver's; what they give
// out is brokered by MemoryPools; everything else is the driver's, and counted.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/newer_cuda.h"
#include "shim/base/log.h"
#include "shim/calls/driver_calls.h"
#include "shim/calls/memory_margin.h"
#include "shim/memory/free_pass.h"
#include "shim/runtime/notices.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

/// nullptr: pools are none of ours, as in a child of fork.
MemoryPools* brokered_pools() {
  Heap* const heap = Runtime::get().heap();
  return heap != nullptr ? &heap->pools() : nullptr;
}

/// Nothing: this allocation is none of ours.
std::optional<CUresult> allocate_brokered(const char* call, const void* caller,
                                          CUdeviceptr* address, std::size_t size, CUmemoryPool pool,
                                          const MemoryPools::Stream& stream) {
  Runtime& runtime = Runtime::get();
  const std::optional<Label> label = runtime.label(caller);
  if (!label) return std::nullopt;
  if (!runtime.connected()) {
    if (!runtime.options().required) return std::nullopt;
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  const Pass pass(*the_gate, call);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  if (label->tag != kNcclTag && !within_memory_margin(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  Heap& heap = *runtime.heap();
  std::optional<int> made;
  std::optional<CUresult> r;
  const auto allocate = [&] {
    r = heap.pools().allocate(address, size, pool, stream, *label, made);
    return r.value_or(CUDA_SUCCESS);
  };
  heap.ask_again(allocate(), allocate);
  if (made) runtime.device_used(*made);
  // It has waited for a broker that has not returned.
  if (r && *r != CUDA_SUCCESS && !runtime.options().required && !runtime.connected())
    return std::nullopt;
  return r;
}

template <CallRow row, bool kPerThread, class... Pool>
CUresult allocate(const void* caller, CUdeviceptr* address, std::size_t size, CUstream stream,
                  Pool... pool) {
  CUmemoryPool from = nullptr;
  if constexpr (sizeof...(pool) > 0) {
    from = (pool, ...);
    if (from == nullptr) return real<row>()(address, size, from, stream);
  }
  if (const auto ours =
          allocate_brokered(symbol_of(row), caller, address, size, from, {stream, kPerThread})) {
    trace("alloc async va=%llx n=%zu rc=%d", *ours == CUDA_SUCCESS ? *address : 0, size, *ours);
    return *ours;
  }
  const CUresult r =
      Runtime::ask_driver([&] { return real<row>()(address, size, pool..., stream); });
  if (r == CUDA_SUCCESS && size > 0) stays(symbol_of(row), size);
  Runtime::get().report().changed();
  return r;
}

template <class Set>
CUresult set_current(const Set& set) {
  MemoryPools* const pools = brokered_pools();
  return pools != nullptr ? pools->set_current(set) : set();
}

/// Its memory can be the broker's: nobody imports it, and it has no use of its own. For an engine
/// that the device lacks it has none: RMM asks for that everywhere. Members that are newer than the
/// headers of CUDA 12.4 are zero then.
bool is_plain(const CUmemPoolProps& properties, const LocalDevices& devices) {
  constexpr std::size_t kUsage = offsetof(CUmemPoolProps, maxSize) + sizeof properties.maxSize;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&properties);
  unsigned short usage = 0;
  std::memcpy(&usage, bytes + kUsage, sizeof usage);
  const bool used =
      usage != 0 && (usage != cuda::kPoolForDecompression ||
                     devices.has(cuda::kDecompressAlgorithms, properties.location.id));
  return properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
         properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED && !used &&
         std::all_of(bytes + kUsage + sizeof usage, bytes + sizeof properties,
                     [](unsigned char byte) { return byte == 0; });
}

}  // namespace

CUresult answer_cuMemAllocAsync(CUdeviceptr* address, std::size_t size, CUstream stream) {
  return allocate<kRow_cuMemAllocAsync, false>(__builtin_return_address(0), address, size, stream);
}

CUresult answer_cuMemAllocAsync_ptsz(CUdeviceptr* address, std::size_t size, CUstream stream) {
  return allocate<kRow_cuMemAllocAsync_ptsz, true>(__builtin_return_address(0), address, size,
                                                   stream);
}

CUresult answer_cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t size, CUmemoryPool pool,
                                        CUstream stream) {
  return allocate<kRow_cuMemAllocFromPoolAsync, false>(__builtin_return_address(0), address, size,
                                                       stream, pool);
}

CUresult answer_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, std::size_t size,
                                             CUmemoryPool pool, CUstream stream) {
  return allocate<kRow_cuMemAllocFromPoolAsync_ptsz, true>(__builtin_return_address(0), address,
                                                           size, stream, pool);
}

CUresult answer_cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult r = real<kRow_cuMemPoolCreate>()(pool, properties);
  Runtime& runtime = Runtime::get();
  if (r == CUDA_SUCCESS && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      runtime.devices() != nullptr) {
    const bool plain = is_plain(*properties, *runtime.devices());
    // Of one that had the same handle, and went with a reset of its device.
    if (MemoryPools* pools = brokered_pools(); pools != nullptr) pools->destroyed(*pool);
    runtime.memory().unbrokered.pool_created(*pool,
                                             {properties->location.id, properties->maxSize, plain});
  }
  return r;
}

CUresult answer_cuMemPoolDestroy(CUmemoryPool pool) {
  const auto real_call = real<kRow_cuMemPoolDestroy>();
  Runtime& runtime = Runtime::get();
  if (runtime.forked()) return real_call(pool);
  const std::optional<UnbrokeredMemory::Pool> made = runtime.memory().unbrokered.pool_goes(pool);
  // What it has here goes with what is freed last. A default pool is not destroyed.
  MemoryPools* const pools = brokered_pools();
  if (pools != nullptr && made) pools->destroyed(pool);
  // If it was its device's current one, the default is now.
  const CUresult r = set_current([&] { return real_call(pool); });
  if (r != CUDA_SUCCESS && made) runtime.memory().unbrokered.pool_created(pool, *made);
  if (r == CUDA_SUCCESS) runtime.report().changed();
  return r;
}

/// While the group is paused, memory that is free leaves what was saved.
CUresult answer_cuMemPoolTrimTo(CUmemoryPool pool, std::size_t least) {
  const auto real_call = real<kRow_cuMemPoolTrimTo>();
  Runtime& runtime = Runtime::get();
  MemoryPools* const pools = brokered_pools();
  if (pools == nullptr) return real_call(pool, least);
  std::uint64_t here = 0;
  {
    const FreePass pass(*the_gate, runtime.memory().brokered);
    if (pass.result() != CUDA_SUCCESS) return pass.result();
    pools->trim(pool, least);
    here = pools->amounts(pool).reserved;
  }
  const CUresult r = real_call(pool, least - std::min<std::uint64_t>(here, least));
  runtime.report().changed();
  return r;
}

CUresult answer_cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                      void* value) {
  const CUresult r = real<kRow_cuMemPoolGetAttribute>()(pool, attribute, value);
  MemoryPools* const pools = brokered_pools();
  if (r != CUDA_SUCCESS || value == nullptr || pools == nullptr) return r;
  const MemoryPools::Amounts here = pools->amounts(pool);
  auto& number = *static_cast<cuuint64_t*>(value);
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) number += here.reserved;
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) number += here.reserved_high;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT) number += here.used;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) number += here.used_high;
  return r;
}

CUresult answer_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                      void* value) {
  const CUresult r = real<kRow_cuMemPoolSetAttribute>()(pool, attribute, value);
  if (MemoryPools* pools = brokered_pools(); pools != nullptr && r == CUDA_SUCCESS)
    pools->attribute_set(pool, attribute);
  return r;
}

CUresult answer_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  return set_current([&] { return real<kRow_cuDeviceSetMemPool>()(device, pool); });
}

CUresult answer_cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type,
                                CUmemoryPool pool) {
  return set_current([&] { return real<kRow_cuMemSetMemPool>()(location, type, pool); });
}

CUresult answer_cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map,
                                   std::size_t count) {
  const auto real_call = real<kRow_cuMemPoolSetAccess>();
  MemoryPools* const pools = brokered_pools();
  if (pools == nullptr) return real_call(pool, map, count);
  const Pass pass(*the_gate, symbol_of(kRow_cuMemPoolSetAccess));
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  const CUresult r = real_call(pool, map, count);
  return r == CUDA_SUCCESS ? pools->access_set(pool, map, count) : r;
}

}  // namespace amem::shim
