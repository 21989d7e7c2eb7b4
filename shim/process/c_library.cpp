#include "shim/process/c_library.h"

#include <elf.h>
#include <link.h>

#include <cstdint>

#include "shim/process/symbols.h"

namespace amem::shim {
namespace {

// Not the C library's functions: with sanitizers those are not ready yet.
AMEM_RUNS_BEFORE_SANITIZERS bool same(const char* a, const char* b) {
  for (; *a == *b; ++a, ++b)
    if (*a == '\0') return true;
  return false;
}

AMEM_RUNS_BEFORE_SANITIZERS bool begins(const char* text, const char* prefix) {
  for (; *prefix != '\0'; ++text, ++prefix)
    if (*text != *prefix) return false;
  return true;
}

/// The C library in one file since 2.34; dlsym's family in a second one before.
AMEM_RUNS_BEFORE_SANITIZERS bool is_c_library(const char* path) {
  const char* name = path;
  for (const char* at = path; *at != '\0'; ++at)
    if (*at == '/') name = at + 1;
  return begins(name, "libc.so.") || begins(name, "libdl.so.");
}

AMEM_RUNS_BEFORE_SANITIZERS std::uint32_t gnu_hash(const char* name) {
  std::uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const std::uint32_t* hashes = nullptr;  // DT_GNU_HASH
};

AMEM_RUNS_BEFORE_SANITIZERS Tables tables_of(const link_map& library) {
  Tables tables{nullptr, nullptr, nullptr};  // a constructor would be instrumented
  for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
    // The loader has made these absolute.
    const auto* table = reinterpret_cast<const void*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SYMTAB) tables.symbols = static_cast<const ElfW(Sym)*>(table);
    if (entry->d_tag == DT_STRTAB) tables.names = static_cast<const char*>(table);
    if (entry->d_tag == DT_GNU_HASH) tables.hashes = static_cast<const std::uint32_t*>(table);
  }
  return tables;
}

}  // namespace

AMEM_RUNS_BEFORE_SANITIZERS void* exported_function(const link_map& library, const char* name) {
  const Tables tables = tables_of(library);
  if (tables.symbols == nullptr || tables.names == nullptr || tables.hashes == nullptr)
    return nullptr;
  // Header, bloom filter, buckets, and for each symbol from `first` on its hash; the last of a
  // bucket has the lowest bit set.
  const std::uint32_t buckets = tables.hashes[0];
  const std::uint32_t first = tables.hashes[1];
  const std::uint32_t bloom_words = tables.hashes[2] * (sizeof(ElfW(Addr)) / sizeof(std::uint32_t));
  const std::uint32_t* bucket = tables.hashes + 4 + bloom_words;
  const std::uint32_t* chain = bucket + buckets;
  const std::uint32_t hash = gnu_hash(name);
  std::uint32_t index = buckets != 0 ? bucket[hash % buckets] : 0;
  for (; index >= first && index != 0; ++index) {
    const ElfW(Sym)& symbol = tables.symbols[index];
    const std::uint32_t theirs = chain[index - first];
    if ((theirs | 1U) == (hash | 1U) && symbol.st_shndx != SHN_UNDEF &&
        ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && same(tables.names + symbol.st_name, name))
      return reinterpret_cast<void*>(library.l_addr + symbol.st_value);
    if ((theirs & 1U) != 0) break;
  }
  return nullptr;
}

AMEM_RUNS_BEFORE_SANITIZERS void* c_library_symbol(const char* name) {
  for (const link_map* library = _r_debug.r_map; library != nullptr; library = library->l_next) {
    if (!is_c_library(library->l_name)) continue;
    if (void* found = exported_function(*library, name); found != nullptr) return found;
  }
  return nullptr;
}

}  // namespace amem::shim
