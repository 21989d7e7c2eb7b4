#include "shim/driver/own_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

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

CUresult PinnedMemory::make(const Driver& driver, std::size_t size) {
  void* pages = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  // A child that the program forks has no driver and no use for it; and pages that the device
  // writes to must not be copied on write here.
  ::madvise(pages, size, MADV_DONTFORK);
  if (const CUresult r = driver.cuMemHostRegister_(pages, size, CU_MEMHOSTREGISTER_PORTABLE);
      r != CUDA_SUCCESS) {
    ::munmap(pages, size);
    return r;
  }
  driver.cuCtxGetCurrent_(&context_);
  driver_ = &driver;
  address_ = pages;
  size_ = size;
  return CUDA_SUCCESS;
}

void PinnedMemory::drop() {
  if (address_ == nullptr) return;
  // A registration ends with its context.
  if (driver_->cuCtxPushCurrent_(context_) == CUDA_SUCCESS) {
    driver_->cuMemHostUnregister_(address_);
    driver_->cuCtxPopCurrent_(&context_);
  }
  ::munmap(address_, size_);
  address_ = nullptr;
}

}  // namespace amem::shim
