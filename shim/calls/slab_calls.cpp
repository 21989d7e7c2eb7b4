// Wrappers of what NCCL asks before and after it makes a buffer: granularity and addresses. Slabs
// answers NCCL, the driver everybody else.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <iterator>
#include <optional>

#include "shim/base/trace.h"
#include "shim/calls/direct.h"
#include "shim/calls/interpose.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

// api, wrapper
#define AMEM_SLAB_CALLS(X)                      \
  X(cuMemGetAllocationGranularity, granularity) \
  X(cuMemAddressReserve, reserve)               \
  X(cuMemAddressFree, free_address)

enum Row {
#define AMEM_ROW(api, ...) kRow_##api,
  AMEM_SLAB_CALLS(AMEM_ROW)
#undef AMEM_ROW
      kRows
};

std::atomic<void*> real_functions[kRows];
#define AMEM_REAL(api) \
  reinterpret_cast<PFN_##api##_v10020>(real_functions[kRow_##api].load(std::memory_order_relaxed))

/// Of a child of fork the shim knows nothing.
bool in_forked_child() { return Runtime::get().forked(); }

CUresult granularity(std::size_t* size, const CUmemAllocationProp* prop,
                     CUmemAllocationGranularity_flags option) {
  const CUresult r = AMEM_REAL(cuMemGetAllocationGranularity)(size, prop, option);
  Runtime& runtime = Runtime::get();
  if (r != CUDA_SUCCESS || in_forked_child() || !runtime.brokers(__builtin_return_address(0)) ||
      !runtime.connected())
    return r;
  if (const auto ours = runtime.slabs().granularity(prop, option); ours) *size = *ours;
  return r;
}

CUresult reserve(CUdeviceptr* address, std::size_t size, std::size_t alignment, CUdeviceptr wish,
                 unsigned long long flags) {
  Runtime& runtime = Runtime::get();
  if (!in_forked_child() && runtime.brokers(__builtin_return_address(0))) {
    if (const auto r = runtime.slabs().reserve(address, size, alignment, wish, flags); r) return *r;
  }
  return AMEM_REAL(cuMemAddressReserve)(address, size, alignment, wish, flags);
}

CUresult free_address(CUdeviceptr address, std::size_t size) {
  if (!in_forked_child()) {
    Slabs& slabs = Runtime::get().slabs();
    std::optional<Pass> pass;
    if (slabs.holds(address)) {
      pass.emplace(Runtime::get().gate());
      if (pass->result() != CUDA_SUCCESS) return pass->result();
    }
    if (const auto r = slabs.free_address(address, size); r) return *r;
  }
  return AMEM_REAL(cuMemAddressFree)(address, size);
}

const Call kCalls[] = {
#define AMEM_CALL(api, wrapper)                                        \
  {#api,                                                               \
   10020,                                                              \
   false,                                                              \
   #api,                                                               \
   reinterpret_cast<void*>(static_cast<PFN_##api##_v10020>(&wrapper)), \
   &real_functions[kRow_##api]},
    AMEM_SLAB_CALLS(AMEM_CALL)
#undef AMEM_CALL
};

#define AMEM_DIRECT_ROW(api, ...) AMEM_DIRECT(#api);
AMEM_SLAB_CALLS(AMEM_DIRECT_ROW)
#undef AMEM_DIRECT_ROW

}  // namespace

CallList slab_calls() { return {std::begin(kCalls), std::end(kCalls)}; }

}  // namespace amem::shim
