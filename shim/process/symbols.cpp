#include "shim/process/symbols.h"

#include <dlfcn.h>
#include <link.h>

namespace amem::shim {
namespace {

const link_map* map_of(const void* code) {
  Dl_info info{};
  link_map* map = nullptr;
  return ::dladdr1(code, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0 ? map
                                                                                      : nullptr;
}

}  // namespace

AMEM_RUNS_BEFORE_SANITIZERS Dlsym real_dlsym() {
  // With the compiler's atomics: std::atomic's functions would be instrumented.
  static void* cached = nullptr;
  void* real = __atomic_load_n(&cached, __ATOMIC_ACQUIRE);
  if (real == nullptr) {
    // The versions under which the C library has exported dlsym on x86-64: since 2.34, and before.
    real = ::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (real == nullptr) real = ::dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    __atomic_store_n(&cached, real, __ATOMIC_RELEASE);
  }
  return reinterpret_cast<Dlsym>(real);
}

void* driver_symbol(const char* symbol) {
  // Not RTLD_NEXT: that may find a stub of somebody's that leads back here, and does not look where
  // a module loaded with RTLD_LOCAL brings its libcuda.
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* found = real_dlsym()(library, symbol);
  ::dlclose(library);
  return found;
}

void* next_symbol(const char* symbol) { return real_dlsym()(RTLD_NEXT, symbol); }

bool precedes_us(const void* code) {
  const link_map* theirs = map_of(code);
  const link_map* ours = map_of(reinterpret_cast<const void*>(&precedes_us));
  if (theirs == nullptr || ours == nullptr) return false;
  // In the order of the search, and unchanged since the process began.
  for (const link_map* m = ours->l_prev; m != nullptr; m = m->l_prev)
    if (m == theirs) return true;
  return false;
}

}  // namespace amem::shim
