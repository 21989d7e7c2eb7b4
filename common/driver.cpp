#include "common/driver.h"

#include <dlfcn.h>

namespace amem {

Status Driver::load(Lookup lookup) {
  if (lookup == nullptr) lookup = &::dlsym;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return {Code::kUnavailable,
            std::string("cannot load the CUDA driver: ") + (why != nullptr ? why : "libcuda.so.1")};
  }
  auto get = reinterpret_cast<PFN_cuGetProcAddress_v12000>(lookup(library, "cuGetProcAddress_v2"));
  if (get == nullptr)
    return {Code::kUnavailable,
            "the CUDA driver is too old: it has no cuGetProcAddress_v2. amem requires driver 525 "
            "or newer"};
#define AMEM_FETCH(call, version)                                                            \
  {                                                                                          \
    void* entry = nullptr;                                                                   \
    CUdriverProcAddressQueryResult found{};                                                  \
    if (get(#call, &entry, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) != CUDA_SUCCESS ||  \
        entry == nullptr)                                                                    \
      return {Code::kUnavailable, "the CUDA driver lacks " #call ", API version " #version}; \
    call##_ = reinterpret_cast<decltype(call##_)>(entry);                                    \
  }
  AMEM_DRIVER_CALLS(AMEM_FETCH)
#undef AMEM_FETCH
#define AMEM_FETCH(call, version)                                                         \
  {                                                                                       \
    void* entry = nullptr;                                                                \
    CUdriverProcAddressQueryResult found{};                                               \
    if (get(#call, &entry, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) == CUDA_SUCCESS) \
      call##_ = reinterpret_cast<decltype(call##_)>(entry);                               \
  }
  AMEM_OPTIONAL_DRIVER_CALLS(AMEM_FETCH)
#undef AMEM_FETCH
  return {};
}

std::string Driver::name(CUresult result) const {
  const char* text = nullptr;
  if (cuGetErrorName_ == nullptr || cuGetErrorName_(result, &text) != CUDA_SUCCESS ||
      text == nullptr)
    text = "CUDA error";
  return std::string(text) + " (" + std::to_string(static_cast<int>(result)) + ")";
}

Status Driver::error(CUresult result, const std::string& what) const {
  const Code code = result == CUDA_ERROR_OUT_OF_MEMORY ? Code::kResourceExhausted : Code::kInternal;
  return {code, what + ": " + name(result)};
}

}  // namespace amem
