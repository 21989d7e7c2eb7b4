// amem-unregistered: refers to a call of libibverbs weakly and is not linked to it, as programs are
// that can do without. Prints what it finds of it: by its reference, by lookups of the whole
// process, and by one in the library, if that is there.
#include <dlfcn.h>

#include <cstddef>
#include <cstdio>

extern "C" __attribute__((weak)) void* ibv_reg_mr(void* pd, void* address, std::size_t size,
                                                  int access);

int main() {
  void* const self = dlopen(nullptr, RTLD_NOW);
  const bool in_default = dlsym(RTLD_DEFAULT, "ibv_reg_mr") != nullptr;
  const bool told = dlerror() != nullptr;
  const bool versioned = dlvsym(RTLD_DEFAULT, "ibv_reg_mr", "IBVERBS_1.1") != nullptr;
  const bool told_again = dlerror() != nullptr;
  const bool in_self = dlvsym(self, "ibv_reg_mr", "IBVERBS_1.1") != nullptr;
  const bool loaded = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr;
  std::printf("weak %d default %d error %d versioned %d error %d self %d loaded %d\n",
              ibv_reg_mr != nullptr, in_default, told, versioned, told_again, in_self, loaded);
  return 0;
}
