#include "tests/workload/base/driver.h"

#include <dlfcn.h>

#include "tests/workload/base/failure.h"

namespace amem::workload {
namespace {

void* DriverLibrary() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}

#ifdef WORKLOAD_LINKED
CudaTable Load() { return {}; }
#else
CudaTable Load() {
  void* library = DriverLibrary();
  if (library == nullptr) {
    const char* why = dlerror();
    throw Failure(std::string("no CUDA driver: ") + (why != nullptr ? why : "libcuda.so.1"));
  }
  const auto get =
      reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) throw Failure("the CUDA driver has no cuGetProcAddress_v2");

  CudaTable table;
#define WORKLOAD_FETCH(call, version)                                                       \
  {                                                                                         \
    void* entry = nullptr;                                                                  \
    CUdriverProcAddressQueryResult found{};                                                 \
    if (get(#call, &entry, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) != CUDA_SUCCESS || \
        entry == nullptr) {                                                                 \
      throw Failure("the CUDA driver lacks " #call ", API version " #version);              \
    }                                                                                       \
    table.call = reinterpret_cast<decltype(table.call)>(entry);                             \
  }
  WORKLOAD_CUDA_CALLS(WORKLOAD_FETCH)
#undef WORKLOAD_FETCH
  return table;
}
#endif

}  // namespace

void* CudaTable::symbol(const char* name) { return dlsym(DriverLibrary(), name); }

const CudaTable& Cuda() {
  static const CudaTable table = Load();
  return table;
}

std::string ResultName(CUresult result) {
  const char* name = nullptr;
  if (Cuda().cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "CUDA error";
  return std::string(name) + " (" + std::to_string(static_cast<int>(result)) + ")";
}

void Check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    throw CudaFailure(std::string(what) + ": " + ResultName(result), result);
  }
}

void* FindPreloaded(const std::string& name) {
  void* const call = dlsym(RTLD_DEFAULT, name.c_str());
  if (call == nullptr) throw Failure("nobody offers " + name + ": is the shim preloaded?");
  return call;
}

}  // namespace amem::workload
