// Memory that this process makes itself: device memory for the broker to keep, and host memory of
// the shim's own. Any thread.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/driver.h"
#include "common/fd.h"

namespace amem::shim {

/// Returns the properties with which brokered memory of a device is made, whoever makes it.
CUmemAllocationProp brokered_properties(int device, bool gpu_direct_rdma);

/// The driver binds such memory to multicast objects, and refuses what the process has imported.
struct OwnMemory {
  CUmemGenericAllocationHandle handle = 0;  // the caller's to release
  Fd fd;                                    // for the broker
};
/// Makes memory of this process's own. Returns the driver's error, such as
/// CUDA_ERROR_OUT_OF_MEMORY; then no memory is left.
CUresult make_own_memory(const Driver& driver, int device, bool gpu_direct_rdma, std::uint64_t size,
                         OwnMemory& made);

/// Host memory of the shim's own that devices can reach.
///
/// Not cuMemHostAlloc's: the driver cuts small blocks of that from chunks, the program's too. A
/// block of ours would keep such a chunk alive after the program has freed all of its own, and the
/// program's next block, fresh pages and zero without us, would have old bytes in it.
///
/// Not synchronised; moves, and goes with its owner.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept
      : driver_(other.driver_),
        context_(other.context_),
        address_(std::exchange(other.address_, nullptr)),
        size_(other.size_) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(context_, other.context_);
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PinnedMemory() { drop(); }

  /// So many zero bytes, reachable by every context of the process at the same address.
  /// REQUIRES: a context is current, the device has CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, and
  /// nothing was made before.
  CUresult make(const Driver& driver, std::size_t size);

  void* get() const { return address_; }

 private:
  void drop();

  const Driver* driver_ = nullptr;
  CUcontext context_ = nullptr;  // in which it was registered
  void* address_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace amem::shim
