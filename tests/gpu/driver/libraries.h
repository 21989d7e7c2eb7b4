// Libraries: the CUDA driver, NCCL and amem's public calls as a test program finds them at run
// time. Nothing is linked, so the same program runs with the shim preloaded and without, with any
// NCCL, and on any driver.
//
// Filled once per process by load(), read-only afterwards: any thread may use it. The libraries
// stay open for good.
#pragma once

#include <nccl.h>

#include <string>

#include "common/driver.h"

namespace gpu_test {

/// Calls of the driver that only tests make, beyond amem's own table.
#define GPU_TEST_CUDA_CALLS(X)          \
  X(cuMemAlloc, 3020)                   \
  X(cuMemGetInfo, 3020)                 \
  X(cuMemFreeHost, 2000)                \
  X(cuStreamBeginCapture, 10010)        \
  X(cuStreamEndCapture, 10000)          \
  X(cuGraphInstantiateWithFlags, 11040) \
  X(cuGraphLaunch, 10000)               \
  X(cuGraphDestroy, 10000)              \
  X(cuGraphExecDestroy, 10000)

struct Cuda : amem::Driver {
#define GPU_TEST_DECLARE(name, version) PFN_##name##_v##version name##_ = nullptr;
  GPU_TEST_CUDA_CALLS(GPU_TEST_DECLARE)
#undef GPU_TEST_DECLARE

  amem::Status load_all();
  /// Ends the process through fail() (control.h) when a call has failed.
  void must(CUresult result, const char* call) const;
  /// Ends a capture; gives the caller what it can launch.
  CUgraphExec end_capture(CUstream stream) const;
  /// A call outside the tables; null when the driver lacks it.
  void* entry(const char* name, int version) const;
};

/// Those of this machine, at most kMaxRanks. This process may fork and use CUDA after it.
int count_gpus();

// clang-format off
#define GPU_TEST_NCCL_CALLS(X) \
  X(ncclGetVersion) X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId) \
  X(ncclCommInitRank) X(ncclCommInitAll) X(ncclCommSplit) X(ncclCommDestroy) X(ncclCommCount) \
  X(ncclCommUserRank) X(ncclAllReduce) X(ncclAllGather) X(ncclReduceScatter) X(ncclBroadcast) \
  X(ncclSend) X(ncclRecv) X(ncclGroupStart) X(ncclGroupEnd)
// clang-format on

struct Nccl {
#define GPU_TEST_DECLARE(name) decltype(&::name) name = nullptr;
  GPU_TEST_NCCL_CALLS(GPU_TEST_DECLARE)
#undef GPU_TEST_DECLARE
  void* library = nullptr;

  /// `path`: a file, or empty for the loader's libnccl.so.2.
  amem::Status load(const std::string& path);
};

/// NCCL's own calls, from 2.29.7 on; null where this one lacks them.
struct SuspendCalls {
  static constexpr int kMemory = 1;  // NCCL_SUSPEND_MEM
  ncclResult_t (*suspend)(ncclComm_t, int flags) = nullptr;
  ncclResult_t (*resume)(ncclComm_t) = nullptr;

  static SuspendCalls find(void* nccl_library);
};

/// amem's pause calls, looked up as programs do: among the global symbols, and through NCCL's own
/// handle, as a program does that found them in a patched NCCL before. All null without the shim.
struct PauseCalls {
  using Call = ncclResult_t (*)(ncclComm_t*);
  Call pause = nullptr;
  Call resume = nullptr;
  Call pause_by_handle = nullptr;
  Call resume_by_handle = nullptr;

  static PauseCalls find(void* nccl_library);
};

}  // namespace gpu_test
