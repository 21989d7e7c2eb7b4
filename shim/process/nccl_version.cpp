#include "shim/process/nccl_version.h"

#include "shim/process/symbols.h"

namespace amem::shim {

int nccl_version_of(const void* code) {
  const auto ask = reinterpret_cast<int (*)(int*)>(symbol_for(code, "ncclGetVersion", nullptr));
  int version = 0;
  return ask != nullptr && ask(&version) == 0 ? version : 0;
}

std::string nccl_name(int version) {
  if (version == 0) return "this NCCL, which does not say its version,";
  return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

}  // namespace amem::shim
