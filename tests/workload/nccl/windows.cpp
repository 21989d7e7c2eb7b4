#include "tests/workload/nccl/windows.h"

#include <cstdint>
#include <cstdlib>

#include "tests/workload/base/failure.h"
#include "tests/workload/nccl/nccl_calls.h"

using amem::workload::Handle;
using amem::workload::NcclCalls;

int ncclGetVersion(int* version) {
  const char* const says = std::getenv("WORKLOAD_NCCL_VERSION");
  if (says == nullptr) return 1;
  *version = std::atoi(says);
  return 0;
}

int ncclCommWindowRegister(void* comm, void* /*buffer*/, std::size_t /*size*/, void** window,
                           int /*flags*/) {
  try {
    const NcclCalls calls(*static_cast<const int*>(comm));
    Handle handle = 0;
    const std::size_t bytes = calls.Granularity(false);
    const CUdeviceptr buffer = calls.Alloc(bytes, false, &handle);
    // NCCL has the driver's unit from the recommended granularity.
    const CUdeviceptr elsewhere = NcclCalls::Reserve(calls.Granularity(true), 0);
    const Handle again = NcclCalls::Retain(buffer);
    NcclCalls::Map(elsewhere, bytes, 0, again);
    NcclCalls::Release(again);
    NcclCalls::SetAccess(elsewhere, bytes, calls.here(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address, as NCCL's own windows have
    *window = reinterpret_cast<void*>(static_cast<std::uintptr_t>(elsewhere));
    return 0;
  } catch (const amem::workload::Failure&) {
    return 1;
  }
}
