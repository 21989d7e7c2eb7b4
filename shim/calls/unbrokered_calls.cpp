// Wrappers of the calls that get device memory which is not brokered: they go on to the driver, and
// are counted so that people can see what a pause cannot give back.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <iterator>

#include "shim/calls/direct.h"
#include "shim/calls/interpose.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

// api, version, typedef suffix, symbol, per-thread variant, wrapper
#define AMEM_COUNTED_CALLS(X)                                                               \
  X(cuMemAllocManaged, 6000, v6000, "cuMemAllocManaged", false, alloc_managed)              \
  X(cuArrayCreate, 3020, v3020, "cuArrayCreate_v2", false, create_array)                    \
  X(cuArray3DCreate, 3020, v3020, "cuArray3DCreate_v2", false, create_array_3d)             \
  X(cuArrayDestroy, 2000, v2000, "cuArrayDestroy", false, destroy_array)                    \
  X(cuMipmappedArrayCreate, 5000, v5000, "cuMipmappedArrayCreate", false, create_mipmap)    \
  X(cuMipmappedArrayDestroy, 5000, v5000, "cuMipmappedArrayDestroy", false, destroy_mipmap) \
  X(cuMemPoolCreate, 11020, v11020, "cuMemPoolCreate", false, create_pool)                  \
  X(cuMemPoolDestroy, 11020, v11020, "cuMemPoolDestroy", false, destroy_pool)

// Calls that change what pools hold.
#define AMEM_POOL_CALLS(X)                                                             \
  X(cuMemAllocAsync, 11020, v11020, "cuMemAllocAsync", false)                          \
  X(cuMemAllocAsync, 11020, v11020_ptsz, "cuMemAllocAsync_ptsz", true)                 \
  X(cuMemAllocFromPoolAsync, 11020, v11020, "cuMemAllocFromPoolAsync", false)          \
  X(cuMemAllocFromPoolAsync, 11020, v11020_ptsz, "cuMemAllocFromPoolAsync_ptsz", true) \
  X(cuMemFreeAsync, 11020, v11020, "cuMemFreeAsync", false)                            \
  X(cuMemFreeAsync, 11020, v11020_ptsz, "cuMemFreeAsync_ptsz", true)                   \
  X(cuMemPoolTrimTo, 11020, v11020, "cuMemPoolTrimTo", false)

enum Row {
#define AMEM_ROW(api, version, type, ...) kRow_##api##_##type,
  AMEM_COUNTED_CALLS(AMEM_ROW) AMEM_POOL_CALLS(AMEM_ROW)
#undef AMEM_ROW
      kRows
};

std::atomic<void*> real_functions[kRows];

template <class Function>
Function real(int row) {
  return reinterpret_cast<Function>(real_functions[row].load(std::memory_order_relaxed));
}
#define AMEM_REAL(api, type) real<PFN_##api##_##type>(kRow_##api##_##type)

void count(Unbrokered::Kind kind, std::uint64_t key, std::uint64_t bytes) {
  Runtime& runtime = Runtime::get();
  Devices* devices = runtime.devices();
  if (devices == nullptr) return;
  runtime.unbrokered().add(kind, key, bytes, devices->current(), devices->current_context());
  runtime.report().changed();
}

void uncount(Unbrokered::Kind kind, std::uint64_t key) {
  Runtime& runtime = Runtime::get();
  if (!runtime.forked() && runtime.unbrokered().remove(kind, key)) runtime.report().changed();
}

template <class Handle>
std::uint64_t key_of(Handle handle) {
  return reinterpret_cast<std::uint64_t>(handle);
}

CUresult alloc_managed(CUdeviceptr* address, std::size_t size, unsigned flags) {
  const CUresult r = AMEM_REAL(cuMemAllocManaged, v6000)(address, size, flags);
  if (r == CUDA_SUCCESS) count(Unbrokered::Kind::kManaged, *address, size);
  return r;
}

// ---- arrays: the driver does not say how much they take, this is the least ----

std::uint64_t element_bytes(CUarray_format format, unsigned channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 4ULL * channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2ULL * channels;
    default:
      return channels;
  }
}

std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned level = 0) {
  // These get their memory from cuMemMapArrayAsync.
  if ((array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) return 0;
  const auto extent = [&](std::size_t length) -> std::uint64_t {
    return std::max<std::uint64_t>(length >> level, 1);
  };
  // Layers do not shrink with the level.
  const bool layers = (array.Flags & CUDA_ARRAY3D_LAYERED) != 0;
  return extent(array.Width) * extent(array.Height) *
         (layers ? std::max<std::uint64_t>(array.Depth, 1) : extent(array.Depth)) *
         element_bytes(array.Format, array.NumChannels);
}

CUresult create_array(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  const CUresult r = AMEM_REAL(cuArrayCreate, v3020)(array, descriptor);
  if (r == CUDA_SUCCESS) {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    shape.Width = descriptor->Width;
    shape.Height = descriptor->Height;
    shape.Format = descriptor->Format;
    shape.NumChannels = descriptor->NumChannels;
    count(Unbrokered::Kind::kArray, key_of(*array), array_bytes(shape));
  }
  return r;
}

CUresult create_array_3d(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  const CUresult r = AMEM_REAL(cuArray3DCreate, v3020)(array, descriptor);
  if (r == CUDA_SUCCESS) count(Unbrokered::Kind::kArray, key_of(*array), array_bytes(*descriptor));
  return r;
}

CUresult destroy_array(CUarray array) {
  const CUresult r = AMEM_REAL(cuArrayDestroy, v2000)(array);
  if (r == CUDA_SUCCESS) uncount(Unbrokered::Kind::kArray, key_of(array));
  return r;
}

CUresult create_mipmap(CUmipmappedArray* mipmap, const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                       unsigned levels) {
  const CUresult r = AMEM_REAL(cuMipmappedArrayCreate, v5000)(mipmap, descriptor, levels);
  if (r == CUDA_SUCCESS) {
    std::uint64_t bytes = 0;
    for (unsigned level = 0; level < std::min(levels, 32U); ++level)
      bytes += array_bytes(*descriptor, level);
    count(Unbrokered::Kind::kArray, key_of(*mipmap), bytes);
  }
  return r;
}

CUresult destroy_mipmap(CUmipmappedArray mipmap) {
  const CUresult r = AMEM_REAL(cuMipmappedArrayDestroy, v5000)(mipmap);
  if (r == CUDA_SUCCESS) uncount(Unbrokered::Kind::kArray, key_of(mipmap));
  return r;
}

// ---- pools: the driver is asked how much they hold, when somebody wants to know ----

CUresult create_pool(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult r = AMEM_REAL(cuMemPoolCreate, v11020)(pool, properties);
  Runtime& runtime = Runtime::get();
  if (r == CUDA_SUCCESS && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      runtime.devices() != nullptr)
    runtime.unbrokered().pool_created(*pool, properties->location.id);
  return r;
}

CUresult destroy_pool(CUmemoryPool pool) {
  const auto real_call = AMEM_REAL(cuMemPoolDestroy, v11020);
  Runtime& runtime = Runtime::get();
  if (runtime.forked()) return real_call(pool);
  const std::optional<int> device = runtime.unbrokered().pool_goes(pool);
  const CUresult r = real_call(pool);
  if (r != CUDA_SUCCESS && device) runtime.unbrokered().pool_created(pool, *device);
  if (r == CUDA_SUCCESS) runtime.report().changed();
  return r;
}

template <int kRow, class Function>
struct PoolCall;

template <int kRow, class... Args>
struct PoolCall<kRow, CUresult (*)(Args...)> {
  static CUresult call(Args... args) {
    const CUresult r = real<CUresult (*)(Args...)>(kRow)(args...);
    Runtime::get().report().changed();
    return r;
  }
};

const Call kCalls[] = {
#define AMEM_CALL(api, version, row, symbol, per_thread, wrapper) \
  {api, version, per_thread, symbol, reinterpret_cast<void*>(wrapper), &real_functions[row]},
#define AMEM_COUNTED(api, version, type, symbol, per_thread, wrapper) \
  AMEM_CALL(#api, version, kRow_##api##_##type, symbol, per_thread,   \
            static_cast<PFN_##api##_##type>(&wrapper))
#define AMEM_POOL(api, version, type, symbol, per_thread)           \
  AMEM_CALL(#api, version, kRow_##api##_##type, symbol, per_thread, \
            (&PoolCall<kRow_##api##_##type, PFN_##api##_##type>::call))
    AMEM_COUNTED_CALLS(AMEM_COUNTED) AMEM_POOL_CALLS(AMEM_POOL)
#undef AMEM_POOL
#undef AMEM_COUNTED
#undef AMEM_CALL
};

#define AMEM_DIRECT_ROW(api, version, type, symbol, ...) AMEM_DIRECT(symbol);
AMEM_COUNTED_CALLS(AMEM_DIRECT_ROW)
AMEM_POOL_CALLS(AMEM_DIRECT_ROW)
#undef AMEM_DIRECT_ROW

}  // namespace

CallList unbrokered_calls() { return {std::begin(kCalls), std::end(kCalls)}; }

}  // namespace amem::shim
