// Driver: the one table of CUDA driver entry points that broker, shim and tests reach CUDA through.
// Nothing links libcuda; the table is filled from libcuda.so.1 at run time, so a simulated driver
// of that name serves as well.
//
// Every entry is fetched through cuGetProcAddress with the API version in its type, as CUDA's own
// libraries do. The table is filled once and read-only afterwards: any thread may use it.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

#include "common/status.h"

// name, API version of the signature
#define AMEM_DRIVER_CALLS(X)                  \
  X(cuInit, 2000)                             \
  X(cuGetErrorName, 6000)                     \
  X(cuGetErrorString, 6000)                   \
  X(cuDeviceGetCount, 2000)                   \
  X(cuDeviceGet, 2000)                        \
  X(cuDeviceGetUuid, 11040)                   \
  X(cuDeviceGetName, 2000)                    \
  X(cuDeviceTotalMem, 3020)                   \
  X(cuDeviceGetAttribute, 2000)               \
  X(cuDevicePrimaryCtxRetain, 7000)           \
  X(cuDevicePrimaryCtxRelease, 11000)         \
  X(cuDevicePrimaryCtxGetState, 7000)         \
  X(cuDeviceGetDefaultMemPool, 11020)         \
  X(cuDeviceGetMemPool, 11020)                \
  X(cuDeviceGetGraphMemAttribute, 11040)      \
  X(cuMemPoolGetAttribute, 11020)             \
  X(cuMemPoolGetAccess, 11020)                \
  X(cuMemFree, 3020)                          \
  X(cuPointerSetAttribute, 6000)              \
  X(cuCtxPushCurrent, 4000)                   \
  X(cuCtxPopCurrent, 4000)                    \
  X(cuCtxGetCurrent, 4000)                    \
  X(cuCtxSetCurrent, 4000)                    \
  X(cuCtxGetDevice, 2000)                     \
  X(cuCtxSynchronize, 2000)                   \
  X(cuStreamCreate, 2000)                     \
  X(cuStreamDestroy, 4000)                    \
  X(cuStreamSynchronize, 2000)                \
  X(cuStreamQuery, 2000)                      \
  X(cuStreamGetCtx, 9020)                     \
  X(cuStreamGetFlags, 5050)                   \
  X(cuStreamIsCapturing, 10000)               \
  X(cuStreamWaitEvent, 3020)                  \
  X(cuEventCreate, 2000)                      \
  X(cuEventDestroy, 4000)                     \
  X(cuEventRecord, 2000)                      \
  X(cuEventQuery, 2000)                       \
  X(cuEventSynchronize, 2000)                 \
  X(cuThreadExchangeStreamCaptureMode, 10010) \
  X(cuGraphGetNodes, 10000)                   \
  X(cuGraphNodeGetType, 10000)                \
  X(cuGraphMemcpyNodeGetParams, 10000)        \
  X(cuGraphMemsetNodeGetParams, 10000)        \
  X(cuGraphChildGraphNodeGetGraph, 10000)     \
  X(cuMemcpyDtoHAsync, 3020)                  \
  X(cuMemcpyHtoDAsync, 3020)                  \
  X(cuMemsetD8Async, 3020)                    \
  X(cuMemHostRegister, 6050)                  \
  X(cuMemHostUnregister, 4000)                \
  X(cuMemHostAlloc, 2020)                     \
  X(cuModuleLoadData, 2000)                   \
  X(cuModuleUnload, 2000)                     \
  X(cuModuleGetFunction, 2000)                \
  X(cuLaunchKernel, 4000)                     \
  X(cuMemCreate, 10020)                       \
  X(cuMemRelease, 10020)                      \
  X(cuMemRetainAllocationHandle, 11000)       \
  X(cuMemExportToShareableHandle, 10020)      \
  X(cuMemImportFromShareableHandle, 10020)    \
  X(cuMemAddressReserve, 10020)               \
  X(cuMemAddressFree, 10020)                  \
  X(cuMemMap, 10020)                          \
  X(cuMemUnmap, 10020)                        \
  X(cuMemSetAccess, 10020)                    \
  X(cuMemGetAllocationGranularity, 10020)     \
  X(cuMemGetAllocationPropertiesFromHandle, 10020)

// The same for calls that a driver may lack; its entry is nullptr then.
#define AMEM_OPTIONAL_DRIVER_CALLS(X)     \
  X(cuDeviceCanAccessPeer, 4000)          \
  X(cuMemAlloc, 3020)                     \
  X(cuMemGetInfo, 3020)                   \
  X(cuEventElapsedTime, 2000)             \
  X(cuMulticastBindMem, 12010)            \
  X(cuMulticastUnbind, 12010)             \
  X(cuGraphNodeGetParams, 13020)          \
  X(cuGraphCreate, 10000)                 \
  X(cuGraphAddMemcpyNode, 10000)          \
  X(cuGraphAddMemsetNode, 10000)          \
  X(cuGraphInstantiateWithFlags, 11040)   \
  X(cuGraphLaunch, 10000)                 \
  X(cuDriverGetVersion, 2020)             \
  X(cuCtxRecordEvent, 12050)              \
  X(cuCheckpointProcessGetState, 12080)   \
  X(cuCheckpointProcessLock, 12080)       \
  X(cuCheckpointProcessCheckpoint, 12080) \
  X(cuCheckpointProcessRestore, 12080)    \
  X(cuCheckpointProcessUnlock, 12080)

namespace amem {

// Headers of CUDA 13.0 do not show it.
using PFN_cuGraphNodeGetParams_v13020 = CUresult (*)(CUgraphNode, CUgraphNodeParams*);

struct Driver {
#define AMEM_DECLARE(name, version) PFN_##name##_v##version name##_ = nullptr;
  AMEM_DRIVER_CALLS(AMEM_DECLARE)
  AMEM_OPTIONAL_DRIVER_CALLS(AMEM_DECLARE)
#undef AMEM_DECLARE

  /// Resolves a symbol of an open library. The shim, which interposes dlsym, passes the real one.
  using Lookup = void* (*)(void* library, const char* name);

  /// Fills the table from libcuda.so.1 and keeps the library open for good. Does not call cuInit.
  /// kUnavailable: no such library, or it lacks a call; the text names it.
  Status load(Lookup lookup = nullptr);

  /// "CUDA_ERROR_OUT_OF_MEMORY (2)".
  std::string name(CUresult result) const;
  /// kResourceExhausted for out-of-memory, else kInternal: "<what>: CUDA_ERROR_… (n)". `what` says
  /// which device.
  Status error(CUresult result, const std::string& what) const;
};

}  // namespace amem
