#include "shim/driver/pinned_memory.h"

#include <sys/mman.h>

namespace amem::shim {

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
  // With a context that has gone the registration has gone.
  if (driver_->cuCtxPushCurrent_(context_) == CUDA_SUCCESS) {
    driver_->cuMemHostUnregister_(address_);
    driver_->cuCtxPopCurrent_(&context_);
  }
  ::munmap(address_, size_);
  address_ = nullptr;
}

}  // namespace amem::shim
