// The driver's memory calls with the arguments, and in the order, in which NCCL makes them (its
// allocator and its peer-to-peer transport). Part of libnccl_workload.so: the shim brokers
// cuMemCreate by the module of its caller. amem-puppet has them as its own.
//
// Stateless but for the device; any thread. Everything throws CudaFailure unless it says otherwise.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "tests/workload/nccl/export.h"

namespace amem::workload {

using Handle = CUmemGenericAllocationHandle;

struct CreateArguments {
  CUmemLocationType location = CU_MEM_LOCATION_TYPE_DEVICE;
  int location_id = 0;
  unsigned handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;  // a mask
  bool gpu_direct_rdma = true;
};

class WORKLOAD_EXPORT NcclCalls {
 public:
  explicit NcclCalls(CUdevice device) : device_(device) {}

  CUdevice device() const { return device_; }
  /// What sizes are rounded to: the minimum for NCCL's own buffers, the recommended for symmetric
  /// memory. NCCL asks before each allocation.
  std::size_t Granularity(bool symmetric) const;

  /// Returns the driver's answer: NCCL tries handle types that are refused.
  static CUresult Create(std::size_t bytes, const CreateArguments& arguments, Handle* handle);
  /// On the own device, as an allocator does that is not NCCL's: without GPUDirect RDMA.
  Handle CreateHere(std::size_t bytes) const;
  /// What NCCL does instead with NCCL_CUMEM_ENABLE=0.
  static CUresult AllocBlock(CUdeviceptr* address, std::size_t bytes);
  /// Host memory that its proxies send from: cudaHostAlloc.
  static void* AllocHost(std::size_t bytes);
  static void FreeHost(void* address);
  static CUdeviceptr Reserve(std::size_t bytes, std::size_t alignment);
  static void FreeAddress(CUdeviceptr address, std::size_t bytes);
  static void Map(CUdeviceptr address, std::size_t bytes, std::size_t offset, Handle handle);
  static void SetAccess(CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                        CUmemAccess_flags flags);
  static void Unmap(CUdeviceptr address, std::size_t bytes);
  static Handle Retain(CUdeviceptr address);
  /// NCCL asks before it maps a handle once more in the same process (ncclCuMemAllocAddr).
  static CUmemAllocationProp Properties(Handle handle);
  static void Release(Handle handle);
  /// A new descriptor, the caller's to close.
  static int ExportDescriptor(Handle handle);
  /// Does not close the descriptor.
  static CUresult ImportDescriptor(int descriptor, Handle* handle);
  static std::size_t RangeBytes(CUdeviceptr address);

  /// ncclCuMemAlloc, or ncclMemAlloc when `symmetric`: granularity, fabric handles first when
  /// `symmetric`, create, reserve, map, access for the own device. `bytes`: rounded already.
  CUdeviceptr Alloc(std::size_t bytes, bool symmetric, Handle* handle) const;
  /// Reserves and maps, access for the own device: for a handle of somebody else's memory with the
  /// alignment 0.
  CUdeviceptr Place(std::size_t bytes, std::size_t alignment, Handle handle) const;
  /// The same where addresses are reserved already.
  void MapHere(CUdeviceptr address, std::size_t bytes, Handle handle) const;
  /// ncclCuMemFree: drops the one handle of the allocation at `address`, its mapping and its
  /// addresses.
  static void Free(CUdeviceptr address);

  CUmemLocation here() const;

 private:
  CUdevice device_;
};

}  // namespace amem::workload
