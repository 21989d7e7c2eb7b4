// Calls that the headers may not declare: newer than CUDA 13.0's, or made up.
#pragma once

#include "common/newer_cuda.h"
#include "tests/sim/entry/api.h"

#define SIM_NEWER(name, parameters) SIM_API name parameters
#define SIM_NEWER_PTSZ(name, parameters) \
  SIM_API name parameters;               \
  SIM_API name##_ptsz parameters

// ---- CUDA 13.1 ----
SIM_NEWER(cuMulticastBindMem_v2,
          (CUmemGenericAllocationHandle, CUdevice, size_t, CUmemGenericAllocationHandle, size_t,
           size_t, unsigned long long));
SIM_NEWER(cuMulticastBindAddr_v2, (CUmemGenericAllocationHandle, CUdevice, size_t, CUdeviceptr,
                                   size_t, unsigned long long));
// ---- CUDA 13.2 ----
SIM_NEWER_PTSZ(cuMemcpyWithAttributesAsync,
               (CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes*, CUstream));
SIM_NEWER(cuGraphNodeGetParams, (CUgraphNode, CUgraphNodeParams*));
SIM_NEWER_PTSZ(cuLaunchHostFunc_v2, (CUstream, CUhostFn, void*, unsigned));
// ---- CUDA 13.3 ----
using SimRecaptureCallback = CUresult (*)(void*, CUgraphNode, const CUgraphNodeParams*,
                                          const CUgraphNodeParams*, int);
SIM_NEWER_PTSZ(cuStreamBeginRecaptureToGraph,
               (CUstream, CUstreamCaptureMode, CUgraph, SimRecaptureCallback, void*));
SIM_NEWER(cuLogicalEndpointIdReserve, (unsigned*, unsigned));
SIM_NEWER(cuLogicalEndpointIdRelease, (unsigned, unsigned));
// ---- CUDA 13.4 ----
SIM_NEWER(cuDeviceGetCliqueCount, (size_t*, CUdevice));
SIM_NEWER(cuGraphAddNode_v3, (CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*,
                              size_t, CUgraphNodeParams*));
SIM_NEWER(cuGraphNodeSetParams_v2, (CUgraphNode, CUgraphNodeParams*));
// ---- CUDA 13.5 ----
SIM_NEWER_PTSZ(cuFabricCpyBatchAsync,
               (size_t, amem::cuda::FabricCopy*, unsigned long long, CUstream));
// ---- made up ----
/// Copies.
SIM_NEWER(cuTeleportAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream));
/// Copies, and its name says that it is about memory.
SIM_NEWER(cuMemTeleportAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream));
/// Says a number.
SIM_NEWER(cuDeviceGetTeleportCount, (int*, CUdevice));
/// A second version of a call that is known, with other parameters.
SIM_NEWER(cuEventCreate_v2, (CUevent*, unsigned, unsigned));

#undef SIM_NEWER_PTSZ
#undef SIM_NEWER
