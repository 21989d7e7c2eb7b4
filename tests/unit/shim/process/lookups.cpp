// A library that calls dlsym. With LOOKS_DRIVER_UP it has the name of the driver, as the CUDA
// runtime has.
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) void* find_something(const char* name) {
#ifdef LOOKS_DRIVER_UP
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
#else
  void* const library = nullptr;
#endif
  return dlsym(library, name);
}
