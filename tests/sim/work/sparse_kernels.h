// Stand-ins for the kernels of shim/kernels/sparse.cu, with the same results.
#pragma once

#include <map>
#include <string>

#include "tests/sim/work/function.h"

namespace sim {

/// By the name of the kernel: makes the function.
const std::map<std::string, Function (*)()>& SparseKernels();

}  // namespace sim
