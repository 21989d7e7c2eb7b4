#include "shim/process/references.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace amem::shim {
namespace {

/// The dynamic section's entries that matter here.
struct Dynamic {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * relocations = nullptr;
  std::size_t relocations_size = 0;
  std::size_t relative_count = 0;  // the first of them name no symbol
  const ElfW(Rela) * calls = nullptr;
  std::size_t calls_size = 0;
};

/// The loader has made the tables' addresses absolute, except in objects whose section it cannot
/// write to.
template <class T>
const T* table(const LoadedObject& object, ElfW(Addr) address) {
  return reinterpret_cast<const T*>(address < object.base ? object.base + address : address);
}

Dynamic dynamic_of(const LoadedObject& object) {
  Dynamic d;
  for (const ElfW(Dyn)* entry = object.dynamic; entry != nullptr && entry->d_tag != DT_NULL;
       ++entry) {
    const ElfW(Addr) address = entry->d_un.d_ptr;
    switch (entry->d_tag) {
      case DT_SYMTAB:
        d.symbols = table<ElfW(Sym)>(object, address);
        break;
      case DT_STRTAB:
        d.names = table<char>(object, address);
        break;
      case DT_RELA:
        d.relocations = table<ElfW(Rela)>(object, address);
        break;
      case DT_RELASZ:
        d.relocations_size = entry->d_un.d_val;
        break;
      case DT_RELACOUNT:
        d.relative_count = entry->d_un.d_val;
        break;
      case DT_JMPREL:
        d.calls = table<ElfW(Rela)>(object, address);
        break;
      case DT_PLTRELSZ:
        d.calls_size = entry->d_un.d_val;
        break;
      default:
        break;
    }
  }
  return d;
}

/// The loader writes the symbol's address there as it is.
bool is_address(const ElfW(Rela) & relocation) {
  switch (ELF64_R_TYPE(relocation.r_info)) {
    case R_X86_64_JUMP_SLOT:
    case R_X86_64_GLOB_DAT:
      return true;
    case R_X86_64_64:
      return relocation.r_addend == 0;
    default:
      return false;
  }
}

}  // namespace

bool LoadedObject::contains(std::uintptr_t address) const {
  return std::any_of(mapped.begin(), mapped.end(),
                     [address](const MappedRange& range) { return range.contains(address); });
}

LoadedObject loaded_object(const dl_phdr_info& info) {
  LoadedObject object;
  object.path = info.dlpi_name;
  object.base = info.dlpi_addr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info.dlpi_phdr[i];
    const std::uintptr_t begin = info.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_DYNAMIC) object.dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (segment.p_type != PT_LOAD) continue;
    object.mapped.push_back({begin, begin + segment.p_memsz});
    if ((segment.p_flags & PF_R) != 0 && (segment.p_flags & PF_W) == 0)
      object.constants.push_back({begin, begin + segment.p_filesz});
  }
  return object;
}

std::vector<Reference> references(const LoadedObject& object, bool (*wanted)(const char* symbol)) {
  std::vector<Reference> found;
  const Dynamic d = dynamic_of(object);
  if (d.symbols == nullptr || d.names == nullptr) return found;
  const auto look = [&](const ElfW(Rela) * first, std::size_t bytes, std::size_t skipped) {
    const std::size_t count = first != nullptr ? bytes / sizeof *first : 0;
    for (std::size_t i = skipped; i < count; ++i) {
      if (!is_address(first[i])) continue;
      const ElfW(Sym)& symbol = d.symbols[ELF64_R_SYM(first[i].r_info)];
      const char* name = d.names + symbol.st_name;
      if (symbol.st_shndx == SHN_UNDEF && wanted(name))
        found.push_back({name, reinterpret_cast<void* const*>(object.base + first[i].r_offset)});
    }
  };
  look(d.relocations, d.relocations_size, d.relative_count);
  look(d.calls, d.calls_size, 0);
  return found;
}

bool needs_library(const LoadedObject& object, std::string_view prefix) {
  const char* names = dynamic_of(object).names;
  for (const ElfW(Dyn)* entry = object.dynamic;
       names != nullptr && entry != nullptr && entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_NEEDED &&
        std::string_view(names + entry->d_un.d_val).starts_with(prefix))
      return true;
  return false;
}

bool has_text(const LoadedObject& object, std::string_view text) {
  return std::any_of(
      object.constants.begin(), object.constants.end(), [text](const MappedRange& range) {
        return ::memmem(reinterpret_cast<const void*>(range.begin), range.end - range.begin,
                        text.data(), text.size()) != nullptr;
      });
}

}  // namespace amem::shim
