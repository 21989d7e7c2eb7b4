// Driver calls: what driver_calls.inc says of those that the shim wraps.
//
// Whoever looks a driver call up gets the wrapper of the row that the driver would have chosen, and
// the row remembers the driver's function. A wrapper is the gate's (GATED), or a function of one of
// the files *_calls.cpp, declared here.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/newer_cuda.h"
#include "shim/process/unknown_calls.h"

namespace amem::shim {

// cudaTypedefs.h shows these to nobody.
using PFN_cuCtxCreate_v2000 = CUresult (*)(CUcontext*, unsigned flags, CUdevice);
using PFN_cuGraphInstantiate_v10000 = CUresult (*)(CUgraphExec*, CUgraph, CUgraphNode*, char*,
                                                   std::size_t);
using PFN_cuGraphInstantiate_v11000 = PFN_cuGraphInstantiate_v10000;
using PFN_cuStreamBeginCapture_v10000 = CUresult (*)(CUstream);
using PFN_cuStreamBeginCapture_v10000_ptsz = PFN_cuStreamBeginCapture_v10000;

// Newer than CUDA 13.0's headers. The shim's own, whatever it is built with.
using PFN_cuMulticastBindMem_v13010 = CUresult (*)(CUmemGenericAllocationHandle, CUdevice,
                                                   std::size_t, CUmemGenericAllocationHandle,
                                                   std::size_t, std::size_t, unsigned long long);
using PFN_cuMulticastBindAddr_v13010 = CUresult (*)(CUmemGenericAllocationHandle, CUdevice,
                                                    std::size_t, CUdeviceptr, std::size_t,
                                                    unsigned long long);
using PFN_cuMemcpyWithAttributesAsync_v13020 = CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t,
                                                            CUmemcpyAttributes*, CUstream);
using PFN_cuMemcpyWithAttributesAsync_v13020_ptsz = PFN_cuMemcpyWithAttributesAsync_v13020;
using PFN_cuMemcpy3DWithAttributesAsync_v13020 = CUresult (*)(CUDA_MEMCPY3D_BATCH_OP*,
                                                              unsigned long long, CUstream);
using PFN_cuMemcpy3DWithAttributesAsync_v13020_ptsz = PFN_cuMemcpy3DWithAttributesAsync_v13020;
using PFN_cuLaunchHostFunc_v13010 = CUresult (*)(CUstream, CUhostFn, void* data,
                                                 unsigned sync_mode);
using PFN_cuLaunchHostFunc_v13010_ptsz = PFN_cuLaunchHostFunc_v13010;
using PFN_cuStreamBeginCaptureToCig_v13010 = CUresult (*)(CUstream, void* params);
using PFN_cuStreamBeginCaptureToCig_v13010_ptsz = PFN_cuStreamBeginCaptureToCig_v13010;
using PFN_cuStreamEndCaptureToCig_v13010 = CUresult (*)(CUstream);
using PFN_cuStreamEndCaptureToCig_v13010_ptsz = PFN_cuStreamEndCaptureToCig_v13010;
using GraphRecaptureCallback = CUresult (*)(void*, CUgraphNode, const CUgraphNodeParams*,
                                            const CUgraphNodeParams*, int status);
using PFN_cuStreamBeginRecaptureToGraph_v13030 = CUresult (*)(CUstream, CUstreamCaptureMode,
                                                              CUgraph, GraphRecaptureCallback,
                                                              void*);
using PFN_cuStreamBeginRecaptureToGraph_v13030_ptsz = PFN_cuStreamBeginRecaptureToGraph_v13030;
using PFN_cuGraphAddNode_v13040 = CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*,
                                               const CUgraphEdgeData*, std::size_t,
                                               CUgraphNodeParams*);
using PFN_cuGraphNodeSetParams_v13040 = CUresult (*)(CUgraphNode, CUgraphNodeParams*);
using PFN_cuMemGetLocationInfo_v13040 = CUresult (*)(CUdeviceptr, std::size_t, std::size_t,
                                                     std::size_t, CUmemLocation*);
using PFN_cuFabricCpyBatchAsync_v13050 = CUresult (*)(std::size_t, cuda::FabricCopy*,
                                                      unsigned long long, CUstream);
using PFN_cuFabricCpyBatchAsync_v13050_ptsz = PFN_cuFabricCpyBatchAsync_v13050;

enum CallRow {
#define WRAPPED(api, version, type, symbol) kRow_##symbol,
#include "shim/calls/driver_calls.inc"
  kRows
};

template <CallRow row>
struct Signature;
#define WRAPPED(api, version, type, symbol) \
  template <>                               \
  struct Signature<kRow_##symbol> {         \
    using Function = PFN_##api##_##type;    \
  };
#include "shim/calls/driver_calls.inc"

/// The driver's functions, once anybody has asked for them.
extern std::atomic<void*> real_functions[kRows];

/// The driver's function for a wrapper of this row: somebody has asked for it.
template <CallRow row>
auto real() {
  return reinterpret_cast<typename Signature<row>::Function>(
      real_functions[row].load(std::memory_order_relaxed));
}

#define GATED(...)
#define RETRIED(...)
#define WATCHED(...)
#define DESTROYS(...)
#define DELAYED(...)
#define WRAPPED(api, version, type, symbol) \
  std::remove_pointer_t<PFN_##api##_##type> answer_##symbol;
#include "shim/calls/driver_calls.inc"

/// What cuIpcCloseMemHandle leaves for later: unmaps what was closed while captures were open,
/// unless more than this many still are (as Heap::release_deferred). What cannot go now goes with a
/// later close or open.
void close_deferred(std::uint32_t captures);

/// As libcuda.so.1 exports it.
const char* symbol_of(CallRow row);

struct Call {
  const char* api;  // as cuGetProcAddress names it
  int version;      // first CUDA version of this signature
  const char* symbol;
  void* wrapper;
  std::atomic<void*>* real;
  /// The variant for per-thread default streams.
  bool per_thread() const;
};

/// The row for an exported symbol; nullptr when we do not wrap it.
const Call* find_symbol(const char* symbol);
/// The row that the driver chooses for this name, version and kind of default stream.
const Call* find_call(const char* api, int version, bool per_thread);

}  // namespace amem::shim
