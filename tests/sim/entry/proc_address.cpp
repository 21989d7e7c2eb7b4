// cuGetProcAddress, and which calls there are: those of the driver's version.
#include "tests/sim/entry/proc_address.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/sim/entry/api.h"
#include "tests/sim/entry/newer_calls.h"
#include "tests/sim/node/node.h"

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

/// Of each version of CUDA whose headers were at hand (tests/newest/headers.txt): how many device
/// attributes cuda.h has.
struct Version {
  const char* text;
  int number;
  int attributes;
};
constexpr int kMadeUpAttributes = 170;
constexpr Version kVersions[] = {
    {"12.4", 12040, 134}, {"12.5", 12050, 135}, {"12.6", 12060, 135},
    {"12.8", 12080, 143}, {"12.9", 12090, 143}, {"13.0", 13000, 147},
    {"13.1", 13010, 148}, {"13.2", 13020, 148}, {"13.3", 13030, 156},
    {"13.4", 13040, 161}, {"13.5", 13050, 161}, {"14.0", kMadeUpVersion, kMadeUpAttributes}};
constexpr int kDefaultVersion = 13010;

int ReadVersion() {
  const char* text = getenv("AMEM_SIM_DRIVER");
  if (text == nullptr || *text == '\0') return kDefaultVersion;
  for (const Version& version : kVersions) {
    if (strcmp(text, version.text) == 0) return version.number;
  }
  Die(std::string("AMEM_SIM_DRIVER=") + text +
      " is no version of CUDA from 12.4 to 13.5, nor 14.0");
}

/// Takes a call out of the table in which the loader looks symbols up, as if the library had been
/// linked without it.
void TakeOut(void* function) {
  Dl_info info{};
  ElfW(Sym)* entry = nullptr;
  if (dladdr1(function, &info, reinterpret_cast<void**>(&entry), RTLD_DL_SYMENT) == 0 ||
      entry == nullptr) {
    Die("a call of the simulated driver has no symbol");
  }
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(entry) / page * page;
  const size_t bytes = reinterpret_cast<uintptr_t>(entry + 1) - begin;
  void* const at = reinterpret_cast<void*>(begin);
  if (mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0) Die("mprotect of the table of symbols");
  entry->st_value = 0;  // "no such symbol" to the loader
  mprotect(at, bytes, PROT_READ);
}

/// Before anybody can look a call up. What was linked to a call before it was taken out keeps it.
__attribute__((constructor)) void TakeOutNewerCalls() {
  for (const Symbol& symbol : kSymbols) {
    if (symbol.version <= DriverVersion()) continue;
    bool older = false;  // the same function under an older version
    for (const Symbol& other : kSymbols) {
      older = older || (other.function == symbol.function && other.version <= DriverVersion());
    }
    if (older) continue;
    TakeOut(symbol.function);
    if (symbol.per_thread_function != nullptr) TakeOut(symbol.per_thread_function);
  }
}

CUresult Find(const char* name, void** out, int version, cuuint64_t flags,
              CUdriverProcAddressQueryResult* status) {
  constexpr cuuint64_t kKnown =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (name == nullptr || out == nullptr || version > DriverVersion() || (flags & ~kKnown) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *out = nullptr;
  bool known = false;
  for (const Symbol& symbol : kSymbols) {
    if (strcmp(symbol.base, name) != 0 || symbol.version > DriverVersion()) continue;
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

int DriverVersion() {
  static const int version = ReadVersion();
  return version;
}

int AttributesOf(int version) {
  for (const Version& each : kVersions) {
    if (each.number == version) return each.attributes;
  }
  return 0;
}

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
