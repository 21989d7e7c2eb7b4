// Wrappers of the calls that get memory which is not brokered, of a device or pinned on the host:
// they go on to the driver, and are counted so that people can see what a pause cannot give back.
#include <algorithm>

#include "shim/calls/driver_calls.h"
#include "shim/runtime/notices.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

void count(UnbrokeredMemory::Kind kind, std::uint64_t key, std::uint64_t bytes,
           bool of_nccl = false) {
  Runtime& runtime = Runtime::get();
  LocalDevices* devices = runtime.devices();
  if (devices == nullptr) return;
  runtime.memory().unbrokered.add(kind, key, bytes, devices->current(), devices->current_context(),
                                  of_nccl);
  runtime.report().changed();
}

void uncount(UnbrokeredMemory::Kind kind, std::uint64_t key) {
  Runtime& runtime = Runtime::get();
  if (!runtime.forked() && runtime.memory().unbrokered.remove(kind, key))
    runtime.report().changed();
}

template <class Handle>
std::uint64_t key_of(Handle handle) {
  return reinterpret_cast<std::uint64_t>(handle);
}

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

}  // namespace

CUresult answer_cuMemAllocManaged(CUdeviceptr* address, std::size_t size, unsigned flags) {
  const CUresult r = real<kRow_cuMemAllocManaged>()(address, size, flags);
  if (r == CUDA_SUCCESS) {
    stays("cuMemAllocManaged", size);
    count(UnbrokeredMemory::Kind::kManaged, *address, size);
  }
  return r;
}

// ---- pinned memory of the host, such as what NCCL's proxies send from ----

CUresult answer_cuMemAllocHost_v2(void** address, std::size_t size) {
  const CUresult r = real<kRow_cuMemAllocHost_v2>()(address, size);
  if (r == CUDA_SUCCESS)
    count(UnbrokeredMemory::Kind::kHost, key_of(*address), size,
          Runtime::get().brokers(__builtin_return_address(0)));
  return r;
}

CUresult answer_cuMemHostAlloc(void** address, std::size_t size, unsigned flags) {
  const CUresult r = real<kRow_cuMemHostAlloc>()(address, size, flags);
  if (r == CUDA_SUCCESS)
    count(UnbrokeredMemory::Kind::kHost, key_of(*address), size,
          Runtime::get().brokers(__builtin_return_address(0)));
  return r;
}

CUresult answer_cuMemFreeHost(void* address) {
  const CUresult r = real<kRow_cuMemFreeHost>()(address);
  if (r == CUDA_SUCCESS) uncount(UnbrokeredMemory::Kind::kHost, key_of(address));
  return r;
}

CUresult answer_cuMemHostRegister_v2(void* address, std::size_t size, unsigned flags) {
  const CUresult r = real<kRow_cuMemHostRegister_v2>()(address, size, flags);
  if (r == CUDA_SUCCESS)
    count(UnbrokeredMemory::Kind::kRegistered, key_of(address), size,
          Runtime::get().brokers(__builtin_return_address(0)));
  return r;
}

CUresult answer_cuMemHostUnregister(void* address) {
  const CUresult r = real<kRow_cuMemHostUnregister>()(address);
  if (r == CUDA_SUCCESS) uncount(UnbrokeredMemory::Kind::kRegistered, key_of(address));
  return r;
}

// ---- arrays: the driver does not say how much they take, this is the least ----

CUresult answer_cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  const CUresult r =
      Runtime::ask_driver([&] { return real<kRow_cuArrayCreate_v2>()(array, descriptor); });
  if (r == CUDA_SUCCESS) {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    shape.Width = descriptor->Width;
    shape.Height = descriptor->Height;
    shape.Format = descriptor->Format;
    shape.NumChannels = descriptor->NumChannels;
    count(UnbrokeredMemory::Kind::kArray, key_of(*array), array_bytes(shape));
  }
  return r;
}

CUresult answer_cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  const CUresult r =
      Runtime::ask_driver([&] { return real<kRow_cuArray3DCreate_v2>()(array, descriptor); });
  if (r == CUDA_SUCCESS)
    count(UnbrokeredMemory::Kind::kArray, key_of(*array), array_bytes(*descriptor));
  return r;
}

CUresult answer_cuArrayDestroy(CUarray array) {
  const CUresult r = real<kRow_cuArrayDestroy>()(array);
  if (r == CUDA_SUCCESS) uncount(UnbrokeredMemory::Kind::kArray, key_of(array));
  return r;
}

CUresult answer_cuMipmappedArrayCreate(CUmipmappedArray* mipmap,
                                       const CUDA_ARRAY3D_DESCRIPTOR* descriptor, unsigned levels) {
  const CUresult r = Runtime::ask_driver(
      [&] { return real<kRow_cuMipmappedArrayCreate>()(mipmap, descriptor, levels); });
  if (r == CUDA_SUCCESS) {
    std::uint64_t bytes = 0;
    for (unsigned level = 0; level < std::min(levels, 32U); ++level)
      bytes += array_bytes(*descriptor, level);
    count(UnbrokeredMemory::Kind::kArray, key_of(*mipmap), bytes);
  }
  return r;
}

CUresult answer_cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
  const CUresult r = real<kRow_cuMipmappedArrayDestroy>()(mipmap);
  if (r == CUDA_SUCCESS) uncount(UnbrokeredMemory::Kind::kArray, key_of(mipmap));
  return r;
}

}  // namespace amem::shim
