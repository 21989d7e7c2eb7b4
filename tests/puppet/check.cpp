#include "tests/puppet/check.h"

#include "tests/workload/base/failure.h"

namespace amem::puppet {

void Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "CUDA error";
  throw workload::Failure(std::string(what) + ": " + name + " (" +
                          std::to_string(static_cast<int>(result)) + ")");
}

}  // namespace amem::puppet
