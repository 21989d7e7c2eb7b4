// amem-unlinked: refers to a driver call weakly and is not linked to the driver, as programs are
// that can do without one. Prints what it finds: whether lookups of the whole process see the call,
// and what calling it returns (-1: it is not there).
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>

extern "C" __attribute__((weak)) CUresult cuMemRelease(CUmemGenericAllocationHandle handle);

int main() {
  void* const self = dlopen(nullptr, RTLD_NOW);
  const bool in_default = dlsym(RTLD_DEFAULT, "cuMemRelease") != nullptr;
  const bool told = dlerror() != nullptr;
  const bool in_self = dlsym(self, "cuMemRelease") != nullptr;
  const int result = cuMemRelease != nullptr ? static_cast<int>(cuMemRelease(1)) : -1;
  std::printf("default %d error %d self %d call %d\n", in_default, told, in_self, result);
  return 0;
}
