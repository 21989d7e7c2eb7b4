#include "shim/process/modules.h"

#include <dlfcn.h>

#include <cstring>

namespace amem::shim {
namespace {

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

}  // namespace

bool matches_module(const char* path, const std::vector<std::string>& prefixes) {
  const char* name = base_name(path);
  for (const std::string& prefix : prefixes)
    if (std::strncmp(name, prefix.c_str(), prefix.size()) == 0) return true;
  return false;
}

std::string module_of(const void* code_address) {
  Dl_info info{};
  if (::dladdr(code_address, &info) == 0 || info.dli_fname == nullptr) return {};
  return base_name(info.dli_fname);
}

}  // namespace amem::shim
