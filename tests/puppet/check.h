// Failures of driver calls, for the puppet and its parts.
#pragma once

#include <cuda.h>

namespace amem::puppet {

/// Throws workload::Failure, "<what>: CUDA_ERROR_... (n)", unless the result is CUDA_SUCCESS.
void Check(CUresult result, const char* what);

}  // namespace amem::puppet
