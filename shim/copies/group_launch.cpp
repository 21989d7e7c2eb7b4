#include "shim/copies/group_launch.h"

#include <algorithm>

#include "common/sparse.h"

namespace amem::shim {

CUresult load_kernels(const Driver& driver, int device, const char* ptx,
                      std::span<const std::pair<CUfunction*, const char*>> functions,
                      LoadedKernels& kernels) {
  // Kernels and this process use the same addresses of the tables.
  int same_pointers = 0;
  CUresult r = driver.cuDeviceGetAttribute_(
      &same_pointers, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device);
  if (r == CUDA_SUCCESS && same_pointers == 0) r = CUDA_ERROR_NOT_SUPPORTED;
  if (r == CUDA_SUCCESS) r = driver.cuModuleLoadData_(&kernels.module, ptx);
  for (const auto& [function, name] : functions)
    if (r == CUDA_SUCCESS) r = driver.cuModuleGetFunction_(function, kernels.module, name);
  if (r == CUDA_SUCCESS) r = driver.cuStreamCreate_(&kernels.stream, CU_STREAM_NON_BLOCKING);
  return r;
}

void unload_kernels(const Driver& driver, const LoadedKernels& kernels) {
  if (kernels.stream != nullptr) driver.cuStreamDestroy_(kernels.stream);
  if (kernels.module != nullptr) driver.cuModuleUnload_(kernels.module);
}

std::uint32_t entries_of(const Piece& piece) {
  return static_cast<std::uint32_t>(sparse::groups(piece.length));
}

CUresult launch_groups(const Driver& driver, const GroupKernel& kernel, CUstream stream,
                       void* table, std::span<const Listed> listed) {
  sparse::Launch launch;
  void* parameters[] = {&launch};
  CUresult r = CUDA_SUCCESS;
  while (r == CUDA_SUCCESS && !listed.empty()) {
    launch.entries = reinterpret_cast<std::uintptr_t>(table);
    launch.ranges = 0;
    launch.groups = 0;
    for (const Listed& one :
         listed.first(std::min<std::size_t>(listed.size(), sparse::kMaxRanges))) {
      launch.range[launch.ranges++] = {one.piece.address, one.piece.pool, one.piece.length,
                                       launch.groups, one.first_entry};
      launch.groups += entries_of(one.piece);
    }
    listed = listed.subspan(launch.ranges);
    r = driver.cuLaunchKernel_(kernel.function, launch.groups * kernel.parts, 1, 1, kernel.threads,
                               1, 1, 0, stream, parameters, nullptr);
  }
  return r;
}

}  // namespace amem::shim
