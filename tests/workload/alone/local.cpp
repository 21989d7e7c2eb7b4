// libpuppet_local.so: brings its own libcuda.so.1 into a program that has none, as an extension of
// Python does, and looks calls up by what it sees itself.
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) void* puppet_look_up(const char* name, int next) {
  // Not a jump: dlsym goes by the address that it returns to.
  void* volatile found = dlsym(next != 0 ? RTLD_NEXT : RTLD_DEFAULT, name);
  return found;
}
