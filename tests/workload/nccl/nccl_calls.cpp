#include "tests/workload/nccl/nccl_calls.h"

#include <cstdint>

#include "tests/workload/base/driver.h"

namespace amem::workload {

std::size_t NcclCalls::Granularity(bool symmetric) const {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = here();
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::size_t granularity = 0;
  const CUmemAllocationGranularity_flags option =
      symmetric ? CU_MEM_ALLOC_GRANULARITY_RECOMMENDED : CU_MEM_ALLOC_GRANULARITY_MINIMUM;
  Check(Cuda().cuMemGetAllocationGranularity(&granularity, &prop, option),
        "cuMemGetAllocationGranularity");
  return granularity;
}

CUresult NcclCalls::Create(std::size_t bytes, const CreateArguments& arguments, Handle* handle) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = arguments.location;
  prop.location.id = arguments.location_id;
  prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(arguments.handle_types);
  prop.allocFlags.gpuDirectRDMACapable = arguments.gpu_direct_rdma ? 1 : 0;
  return Cuda().cuMemCreate(handle, bytes, &prop, 0);
}

Handle NcclCalls::CreateHere(std::size_t bytes) const {
  CreateArguments arguments;
  arguments.location_id = device_;
  arguments.gpu_direct_rdma = false;
  Handle handle = 0;
  Check(Create(bytes, arguments, &handle), "cuMemCreate");
  return handle;
}

CUresult NcclCalls::AllocBlock(CUdeviceptr* address, std::size_t bytes) {
  return Cuda().cuMemAlloc(address, bytes);
}

void* NcclCalls::AllocHost(std::size_t bytes) {
  void* address = nullptr;
  Check(Cuda().cuMemHostAlloc(&address, bytes, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
  return address;
}

void NcclCalls::FreeHost(void* address) { Check(Cuda().cuMemFreeHost(address), "cuMemFreeHost"); }

CUdeviceptr NcclCalls::Reserve(std::size_t bytes, std::size_t alignment) {
  CUdeviceptr address = 0;
  Check(Cuda().cuMemAddressReserve(&address, bytes, alignment, 0, 0), "cuMemAddressReserve");
  return address;
}

void NcclCalls::FreeAddress(CUdeviceptr address, std::size_t bytes) {
  Check(Cuda().cuMemAddressFree(address, bytes), "cuMemAddressFree");
}

void NcclCalls::Map(CUdeviceptr address, std::size_t bytes, std::size_t offset, Handle handle) {
  Check(Cuda().cuMemMap(address, bytes, offset, handle, 0), "cuMemMap");
}

void NcclCalls::SetAccess(CUdeviceptr address, std::size_t bytes, CUmemLocation location,
                          CUmemAccess_flags flags) {
  CUmemAccessDesc access{};
  access.location = location;
  access.flags = flags;
  Check(Cuda().cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
}

void NcclCalls::Unmap(CUdeviceptr address, std::size_t bytes) {
  Check(Cuda().cuMemUnmap(address, bytes), "cuMemUnmap");
}

Handle NcclCalls::Retain(CUdeviceptr address) {
  Handle handle = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the API takes the device address as a pointer
  void* pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  Check(Cuda().cuMemRetainAllocationHandle(&handle, pointer), "cuMemRetainAllocationHandle");
  return handle;
}

CUmemAllocationProp NcclCalls::Properties(Handle handle) {
  CUmemAllocationProp prop{};
  Check(Cuda().cuMemGetAllocationPropertiesFromHandle(&prop, handle),
        "cuMemGetAllocationPropertiesFromHandle");
  return prop;
}

void NcclCalls::Release(Handle handle) { Check(Cuda().cuMemRelease(handle), "cuMemRelease"); }

int NcclCalls::ExportDescriptor(Handle handle) {
  int descriptor = -1;
  Check(Cuda().cuMemExportToShareableHandle(&descriptor, handle,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle");
  return descriptor;
}

CUresult NcclCalls::ImportDescriptor(int descriptor, Handle* handle) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the API takes the descriptor as a pointer
  void* shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
  return Cuda().cuMemImportFromShareableHandle(handle, shareable,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

std::size_t NcclCalls::RangeBytes(CUdeviceptr address) {
  std::size_t bytes = 0;
  Check(Cuda().cuMemGetAddressRange(nullptr, &bytes, address), "cuMemGetAddressRange");
  return bytes;
}

CUdeviceptr NcclCalls::Alloc(std::size_t bytes, bool symmetric, Handle* handle) const {
  const std::size_t granularity = Granularity(symmetric);
  CreateArguments arguments;
  arguments.location_id = device_;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (symmetric) {
    arguments.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
    result = Create(bytes, arguments, handle);
  }
  if (result != CUDA_SUCCESS) {
    arguments.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    result = Create(bytes, arguments, handle);
  }
  Check(result, "cuMemCreate");
  return Place(bytes, granularity, *handle);
}

CUdeviceptr NcclCalls::Place(std::size_t bytes, std::size_t alignment, Handle handle) const {
  const CUdeviceptr address = Reserve(bytes, alignment);
  MapHere(address, bytes, handle);
  return address;
}

void NcclCalls::MapHere(CUdeviceptr address, std::size_t bytes, Handle handle) const {
  Map(address, bytes, 0, handle);
  SetAccess(address, bytes, here(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

void NcclCalls::Free(CUdeviceptr address) {
  // The retained handle is the one that Alloc got: NCCL releases it twice.
  const Handle handle = Retain(address);
  Release(handle);
  const std::size_t bytes = RangeBytes(address);
  Unmap(address, bytes);
  Release(handle);
  FreeAddress(address, bytes);
}

CUmemLocation NcclCalls::here() const {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device_;
  return location;
}

}  // namespace amem::workload
