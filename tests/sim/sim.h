// What the simulated driver offers beyond CUDA's own API. Only test programs include this; amem
// itself never does.
//
// A "kernel" of the simulated driver is a host function. It runs on the worker thread of the stream
// it was launched on, in stream order, and reads device memory through the same addresses the
// program got from the driver API.
#pragma once

#include <cuda.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/// A simulated kernel. `params` points to copies of the values that cuLaunchKernel's kernelParams
/// pointed to.
typedef void (*amemSimKernel)(void** params);

/// Makes a CUfunction that runs `kernel`; its i-th parameter is `param_bytes[i]` bytes long.
/// The function lives until the process ends. Any thread. Returns CUDA_ERROR_INVALID_VALUE on a
/// null argument.
CUresult amemSimFunctionCreate(CUfunction* function, amemSimKernel kernel, unsigned param_count,
                               const size_t* param_bytes);

/// A place in a program's code, or in the shim's, where a rule for faults may hold or delay the
/// thread, or end the process: `name` stands there as a call's does. An error in a rule has no
/// effect. Any thread.
void amemSimFaultPoint(const char* name);

#ifdef __cplusplus
}
#endif
