#include "tests/puppet/team.h"

#include "tests/puppet/check.h"
#include "tests/puppet/passing.h"

namespace amem::puppet {
Team::~Team() {
  if (offer_.joinable()) offer_.join();
}

void Team::Create(std::size_t bytes, unsigned devices) {
  CUmulticastObjectProp prop{};
  prop.numDevices = devices;
  prop.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.size = bytes;
  std::size_t granularity = 0;
  Check(cuMulticastGetGranularity(&granularity, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED),
        "cuMulticastGetGranularity");
  bytes_ = prop.size = (bytes + granularity - 1) / granularity * granularity;
  Check(cuMulticastCreate(&object_, &prop), "cuMulticastCreate");
}

void Team::Offer(const std::string& directory) {
  if (offer_.joinable()) offer_.join();
  offer_ = puppet::Offer(object_, directory);
}

void Team::Join(const std::string& directory, std::size_t bytes) {
  object_ = Take(directory);
  bytes_ = bytes;
}

void Team::AddDevice() const {
  Check(cuMulticastAddDevice(object_, device_), "cuMulticastAddDevice");
}

void Team::Bind(const Blocks::Block& block, std::size_t at) const {
  Check(cuMulticastBindMem(object_, at, block.handle, 0, block.bytes, 0), "cuMulticastBindMem");
}

void Team::BindAddress(const Blocks::Block& block, std::size_t at) const {
  Check(cuMulticastBindAddr(object_, at, block.address, block.bytes, 0), "cuMulticastBindAddr");
}

void Team::BindFor(const Blocks::Block& block, std::size_t at) const {
  using Call =
      CUresult (*)(CUmemGenericAllocationHandle, CUdevice, std::size_t,
                   CUmemGenericAllocationHandle, std::size_t, std::size_t, unsigned long long);
  void* bind = nullptr;
  Check(cuGetProcAddress("cuMulticastBindMem", &bind, 13010, CU_GET_PROC_ADDRESS_DEFAULT, nullptr),
        "cuGetProcAddress");
  Check(reinterpret_cast<Call>(bind)(object_, device_, at, block.handle, 0, block.bytes, 0),
        "cuMulticastBindMem_v2");
}

void Team::BindAddressFor(const Blocks::Block& block, std::size_t at) const {
  using Call = CUresult (*)(CUmemGenericAllocationHandle, CUdevice, std::size_t, CUdeviceptr,
                            std::size_t, unsigned long long);
  void* bind = nullptr;
  Check(cuGetProcAddress("cuMulticastBindAddr", &bind, 13010, CU_GET_PROC_ADDRESS_DEFAULT, nullptr),
        "cuGetProcAddress");
  Check(reinterpret_cast<Call>(bind)(object_, device_, at, block.address, block.bytes, 0),
        "cuMulticastBindAddr_v2");
}

void Team::Unbind(const Blocks::Block& block, std::size_t at) const {
  Check(cuMulticastUnbind(object_, device_, at, block.bytes), "cuMulticastUnbind");
}

void Team::Map() {
  Check(cuMemAddressReserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
  Check(cuMemMap(address_, bytes_, 0, object_, 0), "cuMemMap");
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {device_}},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Check(cuMemSetAccess(address_, bytes_, &access, 1), "cuMemSetAccess");
}

void Team::Unmap() {
  Check(cuMemUnmap(address_, bytes_), "cuMemUnmap");
  Check(cuMemAddressFree(address_, bytes_), "cuMemAddressFree");
  address_ = 0;
}

void Team::Release() {
  Check(cuMemRelease(object_), "cuMemRelease");
  object_ = 0;
}

void Team::Write(std::uint64_t seed) const {
  const auto words = Pattern(bytes_, seed);
  Check(cuMemcpyHtoD(address_, words.data(), bytes_), "cuMemcpyHtoD");
}

void Team::Set(unsigned char value) const {
  Check(cuMemsetD8(address_, value, bytes_), "cuMemsetD8");
  Check(cuCtxSynchronize(), "cuCtxSynchronize");
}

}  // namespace amem::puppet
