// libpuppet_newer.so: linked to a call of libcuda.so.1 that is made up (tests/sim/manual.md,
// "Versions"), as a library is that was built for a newer driver.
#include <cuda.h>

extern "C" {
CUresult cuTeleportAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);

__attribute__((visibility("default"))) CUresult puppet_copies(CUdeviceptr to, CUdeviceptr from,
                                                              size_t bytes, CUstream stream) {
  return cuTeleportAsync(to, from, bytes, stream);
}
}
