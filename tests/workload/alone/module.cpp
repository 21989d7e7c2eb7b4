// libpuppet_module.so: an extension module that is linked to libcuda.so.1, for a program that is
// not.
#include <cuda.h>
#include <dlfcn.h>

/// The file in which calls of cuLaunchKernel go, as cuGetProcAddress, itself linked, has it; null
/// on failure.
extern "C" __attribute__((visibility("default"))) const char* puppet_launches_go_to() {
  void* found = nullptr;
  if (cuGetProcAddress("cuLaunchKernel", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr) !=
      CUDA_SUCCESS)
    return nullptr;
  Dl_info info{};
  return dladdr(found, &info) != 0 ? info.dli_fname : nullptr;
}
