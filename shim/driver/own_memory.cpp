#include "shim/driver/own_memory.h"

#include <fcntl.h>

namespace amem::shim {

CUmemAllocationProp brokered_properties(int device, bool gpu_direct_rdma) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.allocFlags.gpuDirectRDMACapable = gpu_direct_rdma ? 1 : 0;
  return prop;
}

CUresult make_own_memory(const Driver& driver, int device, bool gpu_direct_rdma, std::uint64_t size,
                         OwnMemory& made) {
  const CUmemAllocationProp prop = brokered_properties(device, gpu_direct_rdma);
  CUmemGenericAllocationHandle handle = 0;
  if (CUresult r = driver.cuMemCreate_(&handle, size, &prop, 0); r != CUDA_SUCCESS) return r;
  int fd = -1;
  if (CUresult r = driver.cuMemExportToShareableHandle_(
          &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      r != CUDA_SUCCESS) {
    driver.cuMemRelease_(handle);
    return r;
  }
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  made.handle = handle;
  made.fd.reset(fd);
  return CUDA_SUCCESS;
}

}  // namespace amem::shim
