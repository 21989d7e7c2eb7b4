#include "shim/blocks/segments.h"

#include <string>

#include "shim/base/log.h"
#include "shim/blocks/parts.h"
#include "shim/driver/own_memory.h"
#include "shim/process/page_clients.h"

namespace amem::shim {

/// A NIC may read and write memory of cuMemAlloc; so it may ours.
bool Segments::rdma_capable(int device) const {
  int value = 0;
  return driver_.cuDeviceGetAttribute_(&value,
                                       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                       device) == CUDA_SUCCESS &&
         value != 0;
}

/// NCCL's memory has one handle for each block: it asks for handles.
std::uint64_t Segments::part_of(const Kind& kind, bool whole) const {
  if (whole || kind.label.tag == kNcclTag || !session_.takes_parts()) return 0;
  std::size_t memory = 0;
  if (driver_.cuDeviceTotalMem_(&memory, kind.device) != CUDA_SUCCESS) return 0;
  const std::uint64_t part = shim::part_of(kind.size, memory);
  return part > 0 && !pages_may_be_registered() ? part : 0;
}

CUresult Segments::add(const Kind& kind, bool whole, const Ask& ask, const Enter& enter,
                       Address* address) const {
  Made made;
  CUdeviceptr at = 0;
  if (CUresult r = driver_.cuMemAddressReserve_(&at, kind.size, 0, 0, 0); r != CUDA_SUCCESS)
    return r;
  made.address = at;
  made.size = kind.size;
  const CUmemAllocationProp prop = brokered_properties(kind.device, rdma_capable(kind.device));
  made.rdma = prop.allocFlags.gpuDirectRDMACapable != 0;
  const std::uint64_t part = part_of(kind, whole);
  CUresult r =
      ask([&] { return memory_.handles.create(made.handles, kind.size, part, prop, kind.label); });
  if (r == CUDA_SUCCESS) {
    r = enter(made);
    for (const auto handle : made.handles) memory_.handles.release(handle);  // the mapping keeps it
  }
  if (r != CUDA_SUCCESS) {
    driver_.cuMemAddressFree_(at, kind.size);
    return r;
  }
  *address = at;
  return CUDA_SUCCESS;
}

CUresult Segments::map(const Made& made, const std::vector<CUmemAccessDesc>& access) const {
  if (CUresult r = memory_.mappings.map(made.address, made.handles); r != CUDA_SUCCESS) return r;
  const auto r = memory_.mappings.set_access(made.address, made.size, access.data(), access.size());
  if (r == CUDA_SUCCESS) return CUDA_SUCCESS;
  memory_.mappings.unmap(made.address, made.size);
  return r.value_or(CUDA_ERROR_UNKNOWN);
}

void Segments::drop(const std::vector<AddressRange>& ranges) const {
  for (const auto& [address, size] : ranges) {
    const auto r = memory_.mappings.unmap(address, size);
    if (r.has_value() && *r != CUDA_SUCCESS)
      log_error("unmapping " + std::to_string(size) +
                " bytes that the program has freed: " + driver_.name(*r));
    driver_.cuMemAddressFree_(address, size);
  }
}

}  // namespace amem::shim
