// Arrays and mipmapped arrays, as far as they occupy memory.
#include <algorithm>
#include <memory>
#include <mutex>

#include "tests/sim/entry/api.h"
#include "tests/sim/memory/array.h"
#include "tests/sim/node/node.h"
#include "tests/sim/work/capture.h"
#include "tests/sim/work/context.h"

namespace sim {
namespace {

using MemoryLock = std::lock_guard<std::mutex>;

size_t ElementBytes(CUarray_format format, unsigned channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return size_t{2} * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return size_t{4} * channels;
    default:
      return 0;
  }
}

template <typename Handle>
CUresult Create(Handle* out, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels) {
  Context* context = nullptr;
  {
    const Lock lock = LockDriver();
    CUresult result = CurrentContext(&context);
    if (result == CUDA_SUCCESS) result = CheckUnsafeCall();
    if (result != CUDA_SUCCESS) return result;
  }
  if (out == nullptr || shape == nullptr || shape->Width == 0 || levels == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (shape->Flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
  const bool channels =
      shape->NumChannels == 1 || shape->NumChannels == 2 || shape->NumChannels == 4;
  const size_t element = ElementBytes(shape->Format, shape->NumChannels);
  constexpr size_t kLargest = size_t{1} << 17U;
  if (!channels || element == 0 || shape->Width > kLargest || shape->Height > kLargest ||
      shape->Depth > kLargest) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  size_t bytes = 0;
  for (unsigned level = 0; level < std::min(levels, 18U); ++level) {
    const auto extent = [&](size_t length) { return std::max<size_t>(length >> level, 1); };
    bytes += extent(shape->Width) * extent(shape->Height) * extent(shape->Depth) * element;
  }
  if (bytes > Node().memory) return CUDA_ERROR_OUT_OF_MEMORY;
  constexpr size_t kPage = 4096;
  std::shared_ptr<Physical> memory;
  const CUresult result =
      Physical::Create(context->physical, (bytes + kPage - 1) & ~(kPage - 1), 0, &memory);
  if (result != CUDA_SUCCESS) return result;
  const MemoryLock lock(MemoryMutex());
  *out = reinterpret_cast<Handle>(AddArray(std::move(memory), context->handle()));
  return CUDA_SUCCESS;
}

CUresult CreateFlat(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* shape) {
  if (shape == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR full{};
  full.Width = shape->Width;
  full.Height = shape->Height;
  full.Format = shape->Format;
  full.NumChannels = shape->NumChannels;
  return Create(out, &full, 1);
}

template <typename Handle>
CUresult Destroy(Handle handle) {
  const MemoryLock lock(MemoryMutex());
  return RemoveArray(reinterpret_cast<uint64_t>(handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace
}  // namespace sim

SIM_CALL(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR* shape),
         CreateFlat(array, shape))
SIM_CALL(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR* shape),
         Create(array, shape, 1))
SIM_CALL(cuArrayDestroy, (CUarray array), Destroy(array))
SIM_CALL(cuMipmappedArrayCreate,
         (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR* shape, unsigned levels),
         Create(array, shape, levels))
SIM_CALL(cuMipmappedArrayDestroy, (CUmipmappedArray array), Destroy(array))
