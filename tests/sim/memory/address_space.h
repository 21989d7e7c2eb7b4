// The device addresses of this process: reservations, mappings, allocations of the older calls,
// registered host memory.
//
// Device addresses are host addresses: a reservation is PROT_NONE memory, mapping puts the memfd
// there, access is mprotect. All functions REQUIRE MemoryMutex, unless they say otherwise.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tests/sim/memory/physical.h"

namespace sim {

enum class RangeKind {
  kMapping,         // cuMemMap
  kDevice,          // cuMemAlloc
  kManaged,         // cuMemAllocManaged; lies on one device here
  kPool,            // cuMemAllocAsync
  kShared,          // cuIpcOpenMemHandle
  kHostAllocated,   // cuMemHostAlloc
  kHostRegistered,  // cuMemHostRegister
};

struct Access {
  CUmemLocationType type = CU_MEM_LOCATION_TYPE_INVALID;
  int physical = 0;  // device, or 0 for the host
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
};

struct Range {
  uintptr_t base = 0;
  size_t bytes = 0;
  RangeKind kind = RangeKind::kMapping;
  uint64_t id = 0;                         // CU_POINTER_ATTRIBUTE_BUFFER_ID
  std::shared_ptr<Allocation> allocation;  // kMapping
  int device = -1;                         // physical ordinal of the memory, or kHostMemory
  CUcontext context = nullptr;             // all but kMapping and kPool
  CUmemoryPool pool = nullptr;             // kPool
  size_t mapped_bytes = 0;                 // kDevice, kManaged, kPool: with what rounding added
  bool sync_memops = false;
  unsigned host_flags = 0;           // kHostAllocated, kHostRegistered
  std::vector<Access> access;        // kMapping
  std::shared_ptr<Physical> memory;  // of device memory but kMapping's
  unsigned opens = 0;                // kShared: handles opened and not closed

  uintptr_t end() const { return base + bytes; }
  bool on_device() const { return device >= 0; }
  bool multicast() const { return allocation != nullptr && allocation->multicast != nullptr; }
};

CUresult ReserveAddresses(size_t bytes, size_t alignment, uintptr_t hint, uintptr_t* out);
CUresult FreeAddresses(uintptr_t base, size_t bytes);

CUresult MapAllocation(uintptr_t base, size_t bytes, const std::shared_ptr<Allocation>& allocation);
/// Takes out the mappings in the range, if there are any; it must not cut one.
CUresult UnmapRange(uintptr_t base, size_t bytes);
/// `base` and `bytes` must cover whole, contiguous mappings.
CUresult SetRangeAccess(uintptr_t base, size_t bytes, const std::vector<Access>& access);

/// Maps memory for cuMemAlloc and its like, somewhere, as the range says but for its base.
CUresult AddDeviceMemory(Range range, uintptr_t* out);
/// Memory of another process, or one more opening of it. CUDA_ERROR_INVALID_CONTEXT: it is this
/// process's own.
CUresult OpenSharedMemory(const std::shared_ptr<Physical>& memory, size_t bytes, CUcontext context,
                          uintptr_t* out);
/// Takes back one opening; unmaps with the last. False: nothing of that kind begins there.
bool CloseSharedMemory(uintptr_t base);
CUresult AddHostMemory(size_t bytes, CUcontext context, unsigned flags, uintptr_t* out);
CUresult RegisterHostMemory(uintptr_t base, size_t bytes, CUcontext context, unsigned flags);
/// Takes out the range that begins at `base` and is of this kind; unmaps it unless it was only
/// registered.
bool RemoveRange(uintptr_t base, RangeKind kind);
/// Takes out everything that the older calls allocated in a context that goes away.
void RemoveRangesOf(CUcontext context);
/// The device, whose primary context goes, has no access to mapped memory of the host any more.
void RevokeHostMemory(int device);

/// Whether the process has ever mapped memory that belongs to a device that it does not see.
bool HasMappedHiddenMemory();

/// For a checkpoint: nothing is at the addresses of device memory any more, but they stay taken.
void TakeOffDeviceMemory();
/// Puts the memory of each range there again, with the access that it had. CUDA_ERROR_OUT_OF_MEMORY
/// if the kernel refuses.
CUresult PutBackDeviceMemory();

/// False: nothing is known of the address.
bool SetSyncMemops(uintptr_t address, bool value);

/// The reservation that contains an address.
bool FindReservation(uintptr_t address, uintptr_t* base, size_t* bytes);
/// The range that contains an address.
const Range* FindRange(uintptr_t address);

enum class Memory { kPageable, kPinned, kDevice };

struct Checked {
  CUresult result = CUDA_SUCCESS;
  Memory memory = Memory::kPageable;
  int device = -1;                             // physical, of device memory
  std::shared_ptr<MulticastObject> multicast;  // what is mapped there, if it is one
  size_t offset = 0;                           // in it
};

/// Whether work on physical device `accessor` may read (or write) the bytes, and what they are.
/// Addresses of which nothing is known are the program's own, pageable memory; reserved ones
/// without a mapping are an error, and so are reads of multicast objects. Takes MemoryMutex itself.
Checked CheckAccess(uintptr_t address, size_t bytes, bool write, int accessor);

}  // namespace sim
