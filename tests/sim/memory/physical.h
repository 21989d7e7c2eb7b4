// Physical memory: one memfd, and the handles that CUDA callers know it by.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/sim/node/usage.h"

namespace sim {

/// Guards handles, reservations and mappings. Taken after the driver mutex if both are needed.
std::mutex& MemoryMutex();

/// All descriptors the library holds. Kept in one place because a forked child must close them:
/// with plain fork it inherits them, and would keep memory alive that the real driver would not.
class HeldDescriptors {
 public:
  /// Makes a descriptor with `make` and keeps it, moved to a high number out of the program's way;
  /// -1 and errno if that fails. No fork can fall between making and keeping.
  template <typename Make>
  static int Keep(const Make& make) {
    const std::lock_guard<std::mutex> lock(Mutex());
    return Adopt(make());
  }
  static void Close(int fd);

  static void LockForFork() { Mutex().lock(); }
  static void UnlockAfterFork() { Mutex().unlock(); }
  static void CloseInChild();  // REQUIRES: LockForFork

 private:
  friend class Physical;  // no fork can fall into a change of its list either

  static std::mutex& Mutex();
  static int Adopt(int fd);
};

/// One piece of simulated physical memory, held by a descriptor. Immutable but for checkpoints; any
/// thread.
class Physical {
 public:
  /// Creates memory, zeroed but for AMEM_SIM_FRESH. `device` is a physical ordinal or kHostMemory.
  /// CUDA_ERROR_OUT_OF_MEMORY at capacity.
  static CUresult Create(int device, size_t bytes, unsigned flags, std::shared_ptr<Physical>* out);

  /// Takes a copy of a descriptor of simulated memory of this node. If `fd` is none:
  /// CUDA_ERROR_UNKNOWN, like the real driver. CUDA_ERROR_INVALID_DEVICE: memory of the host whose
  /// device has no node here.
  static CUresult Import(int fd, std::shared_ptr<Physical>* out);

  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  /// The same memory, perhaps by another descriptor.
  bool SameAs(const Physical& other) const;

  int fd() const { return fd_; }
  int device() const { return name_.device; }
  size_t bytes() const { return name_.bytes; }
  unsigned flags() const { return name_.flags; }
  /// The device that it belongs to, also memory of the host.
  int owner() const { return name_.owner; }
  bool imported() const { return imported_; }

  // For a checkpoint of the process. REQUIRES: nothing uses any memory meanwhile.

  /// All that this process holds.
  static std::vector<Physical*> All();
  /// Copies the bytes to ordinary memory. Throws if there is none.
  void Save();
  /// Lets go of the memory; the descriptor is closed.
  void Drop();
  /// Takes new memory with the bytes that were saved. CUDA_ERROR_OUT_OF_MEMORY at capacity.
  CUresult Remake();
  void ForgetSaved() { saved_.reset(); }

 private:
  Physical(int fd, const MemoryName& name, bool imported);

  int fd_;  // -1: dropped
  const MemoryName name_;
  const bool imported_;
  std::unique_ptr<unsigned char[]> saved_;
};

class MulticastObject;

/// What a CUmemGenericAllocationHandle stands for: memory, or a multicast object. The handle is
/// valid while `references` > 0; a mapping keeps the object beyond that, and
/// cuMemRetainAllocationHandle can make the handle valid again.
struct Allocation {
  CUmemGenericAllocationHandle handle = 0;
  unsigned references = 1;
  CUmemAllocationProp properties{};  // as cuMemGetAllocationPropertiesFromHandle reports them
  bool imported = false;
  std::shared_ptr<Physical> memory;
  std::shared_ptr<MulticastObject> multicast;
};

// The table of valid handles. REQUIRES for all: MemoryMutex held.

/// Enters a new allocation with a handle that was never used before.
CUmemGenericAllocationHandle AddAllocation(const CUmemAllocationProp& properties,
                                           std::shared_ptr<Physical> memory, bool imported = false);
/// The same for a multicast object; no types: it was imported.
CUmemGenericAllocationHandle AddMulticast(
    std::shared_ptr<MulticastObject> object,
    CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_NONE);
/// Null if the handle is not valid.
std::shared_ptr<Allocation> FindAllocation(CUmemGenericAllocationHandle handle);
void RetainAllocation(const std::shared_ptr<Allocation>& allocation);
CUresult ReleaseAllocation(CUmemGenericAllocationHandle handle);

}  // namespace sim
