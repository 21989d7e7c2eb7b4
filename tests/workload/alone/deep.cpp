// libpuppet_deep.so: a library that looks the driver up by itself, as one does that has the CUDA
// runtime in it. Its call of dlsym is bound when it is first made.
#include <dlfcn.h>

#include <cstring>

/// 1: its driver calls lead to libcuda; 0: somewhere else; -1: there is no driver.
extern "C" __attribute__((visibility("default"))) int puppet_find_driver() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  void* const found = driver != nullptr ? dlsym(driver, "cuLaunchKernel") : nullptr;
  Dl_info info{};
  if (found == nullptr || dladdr(found, &info) == 0) return -1;
  return std::strstr(info.dli_fname, "libcuda.so.1") != nullptr ? 1 : 0;
}
