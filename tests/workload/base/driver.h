// The driver entry points that the programs use, reached as NCCL and the CUDA runtime reach them:
// libcuda.so.1 is opened at run time, cuGetProcAddress_v2 is looked up in it with dlsym, and every
// other entry point is asked for by name and API version and kept in a table. What is compiled with
// WORKLOAD_LINKED is linked to libcuda.so.1 instead, as compiled kernel launchers are: there each
// entry of the table is a call by its symbol.
//
// Compiled into each program and into libnccl_workload.so separately, with hidden symbols, so that
// each has a table of its own as libtorch and libnccl have. Filled on first use, read-only
// afterwards; any thread.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

// name, API version of the signature
#define WORKLOAD_CUDA_CALLS(X)                     \
  X(cuInit, 2000)                                  \
  X(cuGetErrorName, 6000)                          \
  X(cuDeviceGetCount, 2000)                        \
  X(cuDeviceGet, 2000)                             \
  X(cuDevicePrimaryCtxRetain, 7000)                \
  X(cuCtxSetCurrent, 4000)                         \
  X(cuStreamCreate, 2000)                          \
  X(cuStreamDestroy, 4000)                         \
  X(cuStreamSynchronize, 2000)                     \
  X(cuLaunchHostFunc, 10000)                       \
  X(cuStreamBeginCapture, 10010)                   \
  X(cuStreamEndCapture, 10000)                     \
  X(cuGraphInstantiateWithFlags, 11040)            \
  X(cuGraphLaunch, 10000)                          \
  X(cuGraphDestroy, 10000)                         \
  X(cuGraphExecDestroy, 10000)                     \
  X(cuGraphCreate, 10000)                          \
  X(cuGraphAddMemcpyNode, 10000)                   \
  X(cuGraphAddMemsetNode, 10000)                   \
  X(cuGraphAddChildGraphNode, 10000)               \
  X(cuGraphAddNode, 12030)                         \
  X(cuGraphMemcpyNodeSetParams, 10000)             \
  X(cuGraphExecMemcpyNodeSetParams, 10020)         \
  X(cuGraphExecUpdate, 12000)                      \
  X(cuGraphNodeSetEnabled, 11060)                  \
  X(cuLaunchKernel, 4000)                          \
  X(cuLaunchKernelEx, 11060)                       \
  X(cuMemcpyDtoH, 3020)                            \
  X(cuMemcpyDtoHAsync, 3020)                       \
  X(cuMemcpyHtoD, 3020)                            \
  X(cuMemGetInfo, 3020)                            \
  X(cuMemGetAddressRange, 3020)                    \
  X(cuMemCreate, 10020)                            \
  X(cuMemRelease, 10020)                           \
  X(cuMemRetainAllocationHandle, 11000)            \
  X(cuMemExportToShareableHandle, 10020)           \
  X(cuMemImportFromShareableHandle, 10020)         \
  X(cuMemAddressReserve, 10020)                    \
  X(cuMemAddressFree, 10020)                       \
  X(cuMemMap, 10020)                               \
  X(cuMemUnmap, 10020)                             \
  X(cuMemSetAccess, 10020)                         \
  X(cuMemGetAllocationGranularity, 10020)          \
  X(cuMemGetAllocationPropertiesFromHandle, 10020) \
  X(cuDevicePrimaryCtxReset, 11000)                \
  X(cuCtxCreate, 3020)                             \
  X(cuCtxDestroy, 4000)                            \
  X(cuCtxEnablePeerAccess, 4000)                   \
  X(cuCtxDisablePeerAccess, 4000)                  \
  X(cuMemAlloc, 3020)                              \
  X(cuMemAllocPitch, 3020)                         \
  X(cuMemFree, 3020)                               \
  X(cuMemAllocManaged, 6000)                       \
  X(cuMemAllocHost, 3020)                          \
  X(cuMemHostAlloc, 2020)                          \
  X(cuMemFreeHost, 2000)                           \
  X(cuMemHostRegister, 6050)                       \
  X(cuMemHostUnregister, 4000)                     \
  X(cuMemAllocAsync, 11020)                        \
  X(cuMemAllocFromPoolAsync, 11020)                \
  X(cuMemFreeAsync, 11020)                         \
  X(cuMemPoolCreate, 11020)                        \
  X(cuMemPoolDestroy, 11020)                       \
  X(cuArrayCreate, 3020)                           \
  X(cuArrayDestroy, 2000)                          \
  X(cuMemGetAccess, 10020)                         \
  X(cuPointerGetAttribute, 4000)                   \
  X(cuPointerGetAttributes, 7000)                  \
  X(cuPointerSetAttribute, 6000)

namespace amem::workload {

struct CudaTable {
#ifdef WORKLOAD_LINKED
// Known to the compiler, so that each becomes a call by its symbol.
#define WORKLOAD_DECLARE(name, version) static constexpr auto* name = &::name;
#else
#define WORKLOAD_DECLARE(name, version) PFN_##name##_v##version name = nullptr;
#endif
  WORKLOAD_CUDA_CALLS(WORKLOAD_DECLARE)
#undef WORKLOAD_DECLARE

  /// A symbol of libcuda.so.1 itself; null when it has none of that name.
  static void* symbol(const char* name);
};

/// The table. Throws Failure when there is no driver or it lacks a call. Does not call cuInit.
const CudaTable& Cuda();

/// Throws CudaFailure, "<what>: CUDA_ERROR_... (n)", unless the result is CUDA_SUCCESS.
void Check(CUresult result, const char* what);

/// "CUDA_ERROR_OUT_OF_MEMORY (2)".
std::string ResultName(CUresult result);

/// A call that a preloaded library offers to everybody. Throws Failure when none does.
void* FindPreloaded(const std::string& name);
template <class Function>
Function Preloaded(const std::string& name) {
  return reinterpret_cast<Function>(FindPreloaded(name));
}

}  // namespace amem::workload
