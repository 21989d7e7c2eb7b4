// References: what a loaded object refers to in other objects, by the tables that the loader reads
// (ELF). Pure: reads the object's own memory and asks the loader nothing.
#pragma once

#include <link.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace amem::shim {

struct MappedRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool contains(std::uintptr_t address) const { return address >= begin && address < end; }
};

/// An object in this process. Valid while it is loaded.
struct LoadedObject {
  std::string path;  // the loader's; empty for the program itself
  ElfW(Addr) base = 0;
  const ElfW(Dyn) * dynamic = nullptr;
  std::vector<MappedRange> mapped;     // its segments
  std::vector<MappedRange> constants;  // those of them that are read and never written

  bool contains(std::uintptr_t address) const;
};

/// As dl_iterate_phdr shows it.
LoadedObject loaded_object(const dl_phdr_info& info);

/// A place into which the loader puts the address of a function, and from which the object calls
/// it. Until the first call of a lazily bound one the place leads back into the object.
struct Reference {
  std::string symbol;           // a copy: lives longer than the object
  void* const* slot = nullptr;  // in the object: may be read while that is loaded
};

/// The references to functions that the object does not define itself and whose names are wanted.
std::vector<Reference> references(const LoadedObject& object, bool (*wanted)(const char* symbol));

/// Whether the object needs (DT_NEEDED) a library whose name begins so.
bool needs_library(const LoadedObject& object, std::string_view prefix);

/// The text stands in what nobody writes to.
bool has_text(const LoadedObject& object, std::string_view text);

}  // namespace amem::shim
