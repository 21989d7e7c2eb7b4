// Modules: of PTX there are only the kernels that this driver has a stand-in for.
#include <cstring>
#include <map>
#include <string>

#include "tests/sim/entry/api.h"
#include "tests/sim/work/context.h"
#include "tests/sim/work/function.h"
#include "tests/sim/work/sparse_kernels.h"

namespace sim {
namespace {

using Kernels = std::map<std::string, CUfunction>;

std::map<CUmodule, Kernels>& Modules() {
  static auto* const modules = new std::map<CUmodule, Kernels>();
  return *modules;
}

CUresult LoadModule(CUmodule* out, const void* image) {
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock = LockDriver();
  Context* context = nullptr;
  const CUresult result = CurrentContext(&context);
  if (result != CUDA_SUCCESS) return result;
  // Anything but PTX, a cubin for example, does not begin like this.
  const char* const text = static_cast<const char*>(image);
  if (strncmp(text, "\n.version", 9) != 0 && strncmp(text, ".version", 8) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const std::string ptx = text;
  Kernels kernels;
  for (const auto& [name, make] : SparseKernels()) {
    if (ptx.find(".visible .entry " + name + "(") != std::string::npos) {
      kernels[name] = AddFunction(make());
    }
  }
  if (kernels.empty()) return CUDA_ERROR_NOT_SUPPORTED;
  static uintptr_t next = 0x3d000000;
  *out = reinterpret_cast<CUmodule>(next += 16);
  Modules()[*out] = std::move(kernels);
  return CUDA_SUCCESS;
}

CUresult UnloadModule(CUmodule module) {
  const Lock lock = LockDriver();
  return Modules().erase(module) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult GetFunction(CUfunction* out, CUmodule module, const char* name) {
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock = LockDriver();
  const auto found = Modules().find(module);
  if (found == Modules().end()) return CUDA_ERROR_INVALID_HANDLE;
  const auto kernel = found->second.find(name);
  if (kernel == found->second.end()) return CUDA_ERROR_NOT_FOUND;
  *out = kernel->second;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sim

SIM_CALL(cuModuleLoadData, (CUmodule * module, const void* image), LoadModule(module, image))
SIM_CALL(cuModuleUnload, (CUmodule module), UnloadModule(module))
SIM_CALL(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name),
         GetFunction(function, module, name))
