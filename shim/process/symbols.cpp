#include "shim/process/symbols.h"

#include <dlfcn.h>
#include <link.h>

#include "shim/process/c_library.h"

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
    const Dlvsym look_up = real_dlvsym();
    real = look_up(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (real == nullptr) real = look_up(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    __atomic_store_n(&cached, real, __ATOMIC_RELEASE);
  }
  return reinterpret_cast<Dlsym>(real);
}

AMEM_RUNS_BEFORE_SANITIZERS Dlvsym real_dlvsym() {
  static void* cached = nullptr;
  void* real = __atomic_load_n(&cached, __ATOMIC_ACQUIRE);
  if (real == nullptr) {
    real = c_library_symbol("dlvsym");
    __atomic_store_n(&cached, real, __ATOMIC_RELEASE);
  }
  return reinterpret_cast<Dlvsym>(real);
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

void* no_such_symbol(const char* symbol) {
  // In our own file, which has none of that name. It stays open: to close it would succeed, and
  // dlerror would have nothing to say.
  static void* const own = [] {
    const link_map* map = map_of(reinterpret_cast<const void*>(&no_such_symbol));
    return map != nullptr ? ::dlopen(map->l_name, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  }();
  if (own == nullptr || real_dlsym()(own, symbol) == nullptr) return nullptr;
  // A row that AMEM_FORGET_CALLS names is exported nevertheless. The C library has no driver call.
  static void* const c_library = ::dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  return c_library != nullptr ? real_dlsym()(c_library, symbol) : nullptr;
}

void* next_symbol(const char* symbol) { return real_dlsym()(RTLD_NEXT, symbol); }

void* symbol_for(const void* code, const char* name, const char* version) {
  const link_map* map = map_of(code);
  if (map == nullptr) return nullptr;
  void* library = ::dlopen(map->l_name[0] != '\0' ? map->l_name : nullptr, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* found =
      version != nullptr ? real_dlvsym()(library, name, version) : real_dlsym()(library, name);
  ::dlclose(library);
  return found;
}

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
