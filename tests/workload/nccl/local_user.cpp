// A library that is linked to NCCL, for programs that load both for themselves alone (RTLD_LOCAL),
// as Python loads PyTorch. libnccl_local_user.so would be taken for NCCL: it is libuses_nccl.so.
#include <dlfcn.h>

#include "tests/workload/nccl/export.h"
#include "tests/workload/nccl/windows.h"

/// Registers a window; `looked_up`: by a lookup in the whole process. 0: done; -1: none was found.
extern "C" WORKLOAD_EXPORT int uses_nccl_register(int device, int looked_up) {
  auto* call = &ncclCommWindowRegister;
  if (looked_up != 0)
    call = reinterpret_cast<decltype(call)>(dlsym(RTLD_DEFAULT, "ncclCommWindowRegister"));
  if (call == nullptr) return -1;
  void* window = nullptr;
  return call(&device, nullptr, 0, &window, 0);
}
