#include "shim/process/modules.h"

#include <errno.h>
#include <link.h>

#include <cstdint>
#include <cstring>

#include "shim/process/symbols.h"

namespace amem::shim {
namespace {

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

/// The loader has no name for the program itself.
const char* or_program(const char* name) {
  return name[0] != '\0' ? name : program_invocation_name;
}

struct Search {
  std::uintptr_t address;
  const char* found;
};

int look_in(dl_phdr_info* object, std::size_t /*size*/, void* data) {
  auto& search = *static_cast<Search*>(data);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD ||
        search.address - object->dlpi_addr - segment.p_vaddr >= segment.p_memsz)
      continue;
    search.found = or_program(object->dlpi_name);
    return 1;
  }
  return 0;
}

}  // namespace

bool matches_module(const char* path, const char* prefix) {
  return std::strncmp(base_name(path), prefix, std::strlen(prefix)) == 0;
}

bool matches_module(const char* path, const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes)
    if (matches_module(path, prefix.c_str())) return true;
  return false;
}

const char* file_of_by_walk(const void* code_address) {
  Search search{reinterpret_cast<std::uintptr_t>(code_address), ""};
  ::dl_iterate_phdr(&look_in, &search);
  return search.found;
}

const char* file_of(const void* code_address) {
  const FindObject find = find_object();
  if (find == nullptr) return file_of_by_walk(code_address);
  FoundObject object;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): it only reads the address itself
  if (find(const_cast<void*>(code_address), &object) != 0) return "";
  return or_program(object.map->l_name);
}

std::string module_of(const void* code_address) { return base_name(file_of(code_address)); }

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
