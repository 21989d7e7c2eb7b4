// libpuppet_interposer.so: another library that wraps driver calls, to be preloaded beside the
// shim. It says so on standard error whenever it is called, and goes on to the function that
// PUPPET_NEXT names the way to: "next" (RTLD_NEXT) or "library" (out of libcuda.so.1).
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#undef cuMemAlloc

extern "C" {

// NOLINTNEXTLINE(readability-identifier-naming): the driver's name
__attribute__((visibility("default"))) CUresult cuMemAlloc_v2(CUdeviceptr* address,
                                                              std::size_t bytes) {
  using Function = CUresult (*)(CUdeviceptr*, std::size_t);
  static const Function next = [] {
    const char* way = std::getenv("PUPPET_NEXT");
    void* from = way != nullptr && std::strcmp(way, "library") == 0
                     ? dlopen("libcuda.so.1", RTLD_NOW)
                     : RTLD_NEXT;
    return reinterpret_cast<Function>(dlsym(from, "cuMemAlloc_v2"));
  }();
  static thread_local bool inside = false;
  if (inside) std::abort();  // it has been led back to itself
  inside = true;
  std::fprintf(stderr, "interposer: %zu bytes\n", bytes);
  const CUresult r = next(address, bytes);
  inside = false;
  return r;
}
}
