// Functions that can be launched, and what a launch tells them.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace sim {

struct Grid {
  int device = 0;  // physical
  unsigned thread_blocks[3] = {1, 1, 1};
  unsigned threads[3] = {1, 1, 1};
};

struct Function {
  /// Runs on a stream's worker without any lock, with copies of the parameters' values. An error
  /// becomes the context's sticky error.
  std::function<CUresult(const Grid& grid, void** values)> run;
  std::vector<size_t> parameter_bytes;
};

/// The handle lives until the process ends. REQUIRES the driver mutex.
CUfunction AddFunction(Function function);

}  // namespace sim
