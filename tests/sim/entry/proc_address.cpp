// cuGetProcAddress.
#include "tests/sim/entry/proc_address.h"

#include <cstring>

#include "tests/sim/entry/api.h"

// Newer than the headers.
SIM_API cuMulticastBindMem_v2(CUmemGenericAllocationHandle, CUdevice, size_t,
                              CUmemGenericAllocationHandle, size_t, size_t, unsigned long long);

namespace sim {
namespace {

struct Symbol {
  const char* base;
  int version;       // of CUDA, in which this variant appeared
  const char* name;  // exported
  void* function;
  const char* per_thread_name;  // of the variant with a per-thread default stream, or null
  void* per_thread_function;
};

// For each name the variants in ascending order of version.
const Symbol kSymbols[] = {
#define SIM_SYMBOL(base, version, function) \
  {#base, version, #function, reinterpret_cast<void*>(function), nullptr, nullptr},
#define SIM_SYMBOL_PER_THREAD(base, version, function, suffix) \
  {#base,                                                      \
   version,                                                    \
   #function,                                                  \
   reinterpret_cast<void*>(function),                          \
   #function #suffix,                                          \
   reinterpret_cast<void*>(function##suffix)},
#include "tests/sim/entry/symbols.inc"
#undef SIM_SYMBOL
#undef SIM_SYMBOL_PER_THREAD
};

CUresult Find(const char* name, void** out, int version, cuuint64_t flags,
              CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t kKnown =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (name == nullptr || out == nullptr || version > kDriverVersion || (flags & ~kKnown) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *out = nullptr;
  bool known = false;
  for (const Symbol& symbol : kSymbols) {
    if (strcmp(symbol.base, name) != 0) continue;
    known = true;
    if (symbol.version > version) continue;
    const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 &&
                            symbol.per_thread_function != nullptr;
    *out = per_thread ? symbol.per_thread_function : symbol.function;
  }
  const CUdriverProcAddressQueryResult found = *out != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                                               : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                                       : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (status != nullptr) *status = found;
  return CUDA_SUCCESS;
}

}  // namespace

std::string BaseName(const std::string& exported_name) {
  std::string base = exported_name;
  const size_t size = base.size();
  if (size > 5 && (base.ends_with("_ptsz") || base.ends_with("_ptds"))) base.resize(size - 5);
  const size_t version = base.rfind("_v");
  if (version != std::string::npos && version + 3 == base.size() && base.back() >= '2' &&
      base.back() <= '9') {
    base.resize(version);
  }
  return base;
}

bool IsExportedName(const std::string& name) {
  for (const Symbol& symbol : kSymbols) {
    if (name == symbol.base || name == symbol.name) return true;
    if (symbol.per_thread_name != nullptr && name == symbol.per_thread_name) return true;
  }
  return false;
}

}  // namespace sim

SIM_API cuGetProcAddress(const char* symbol, void** out, int version, cuuint64_t flags) {
  return sim::Call("cuGetProcAddress", sim::Need::kNothing, [&]() -> CUresult {
    // The older call has no place for the reason.
    const CUresult result = sim::Find(symbol, out, version, flags, nullptr);
    return result == CUDA_SUCCESS && *out == nullptr ? CUDA_ERROR_NOT_FOUND : result;
  });
}

SIM_API cuGetProcAddress_v2(const char* symbol, void** out, int version, cuuint64_t flags,
                            CUdriverProcAddressQueryResult* status) {
  return sim::Call("cuGetProcAddress_v2", sim::Need::kNothing,
                   [&] { return sim::Find(symbol, out, version, flags, status); });
}
