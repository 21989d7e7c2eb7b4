// Wrappers of what NCCL asks before and after it makes a buffer: granularity and addresses. Slabs
// answers NCCL, the driver everybody else.
#include <optional>

#include "shim/base/trace.h"
#include "shim/calls/driver_calls.h"
#include "shim/memory/free_pass.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {

CUresult answer_cuMemGetAllocationGranularity(std::size_t* size, const CUmemAllocationProp* prop,
                                              CUmemAllocationGranularity_flags option) {
  const CUresult r = real<kRow_cuMemGetAllocationGranularity>()(size, prop, option);
  Runtime& runtime = Runtime::get();
  if (r != CUDA_SUCCESS || runtime.forked() || !runtime.brokers(__builtin_return_address(0)) ||
      !runtime.connected())
    return r;
  if (const auto ours = runtime.slabs().granularity(prop, option); ours) *size = *ours;
  return r;
}

CUresult answer_cuMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t alignment,
                                    CUdeviceptr wish, unsigned long long flags) {
  Runtime& runtime = Runtime::get();
  if (!runtime.forked() && runtime.brokers(__builtin_return_address(0))) {
    if (const auto r = runtime.slabs().reserve(address, size, alignment, wish, flags); r) return *r;
  }
  return real<kRow_cuMemAddressReserve>()(address, size, alignment, wish, flags);
}

CUresult answer_cuMemAddressFree(CUdeviceptr address, std::size_t size) {
  if (!Runtime::get().forked()) {
    Slabs& slabs = Runtime::get().slabs();
    std::optional<FreePass> pass;
    const bool of_slab = slabs.holds(address);
    // What is mapped is not freed. Of memory that is paused the driver does not know that it is.
    if (!of_slab && Runtime::get().memory().mappings.brokered(address, size))
      return CUDA_ERROR_INVALID_VALUE;
    if (of_slab) {
      pass.emplace(*the_gate, Runtime::get().memory().holdings);
      if (pass->result() != CUDA_SUCCESS) return pass->result();
    }
    if (const auto r = slabs.free_address(address, size); r) return *r;
  }
  return real<kRow_cuMemAddressFree>()(address, size);
}

}  // namespace amem::shim
