#include "shim/process/symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

// What musl lacks of what this file refers to.
// NOLINTBEGIN(readability-redundant-declaration): this makes them weak
extern r_debug _r_debug __attribute__((weak));
extern "C" int dladdr1(const void*, Dl_info*, void**, int) noexcept __attribute__((weak));
// NOLINTEND(readability-redundant-declaration)

namespace amem::shim {
namespace {

AMEM_RUNS_BEFORE_SANITIZERS bool is_musl() { return &_r_debug == nullptr; }

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

/// The C library in one file since 2.34; dlsym's family and the threads in two others before. musl
/// is its own loader.
AMEM_RUNS_BEFORE_SANITIZERS bool is_c_library(const char* path) {
  const char* name = path;
  for (const char* at = path; *at != '\0'; ++at)
    if (*at == '/') name = at + 1;
  return begins(name, "libc.so") || begins(name, "libdl.so.") || begins(name, "libpthread.so.") ||
         begins(name, "ld-musl-");
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
    // glibc's loader has made these absolute.
    const auto* table =
        reinterpret_cast<const void*>((is_musl() ? library.l_addr : 0) + entry->d_un.d_ptr);
    if (entry->d_tag == DT_SYMTAB) tables.symbols = static_cast<const ElfW(Sym)*>(table);
    if (entry->d_tag == DT_STRTAB) tables.names = static_cast<const char*>(table);
    if (entry->d_tag == DT_GNU_HASH) tables.hashes = static_cast<const std::uint32_t*>(table);
  }
  return tables;
}

const link_map* map_of(const void* code) {
  Dl_info info{};
  link_map* map = nullptr;
  return ::dladdr1 != nullptr &&
                 ::dladdr1(code, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0
             ? map
             : nullptr;
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

namespace {

/// For musl, which shows no list of what is loaded.
struct MuslSearch {
  const char* name;
  void* found;
};

AMEM_RUNS_BEFORE_SANITIZERS int look_in_musl(dl_phdr_info* object, std::size_t /*size*/,
                                             void* data) {
  auto& search = *static_cast<MuslSearch*>(data);
  if (!is_c_library(object->dlpi_name)) return 0;
  link_map library{};
  library.l_addr = object->dlpi_addr;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type == PT_DYNAMIC)
      library.l_ld = reinterpret_cast<ElfW(Dyn)*>(library.l_addr + segment.p_vaddr);
  }
  if (library.l_ld != nullptr) search.found = exported_function(library, search.name);
  return search.found != nullptr ? 1 : 0;
}

}  // namespace

AMEM_RUNS_BEFORE_SANITIZERS void* c_library_symbol(const char* name) {
  if (is_musl()) {
    MuslSearch search{name, nullptr};
    ::dl_iterate_phdr(&look_in_musl, &search);
    return search.found;
  }
  for (const link_map* library = _r_debug.r_map; library != nullptr; library = library->l_next) {
    if (!is_c_library(library->l_name)) continue;
    if (void* found = exported_function(*library, name); found != nullptr) return found;
  }
  return nullptr;
}

AMEM_RUNS_BEFORE_SANITIZERS Dlsym real_dlsym() {
  // With the compiler's atomics: std::atomic's functions would be instrumented.
  static void* cached = nullptr;
  void* real = __atomic_load_n(&cached, __ATOMIC_ACQUIRE);
  if (real == nullptr) {
    // The versions under which the C library has exported dlsym on x86-64: since 2.34, and before.
    const Dlvsym look_up = real_dlvsym();
    if (look_up == nullptr) {
      real = c_library_symbol("dlsym");  // musl has no versions
    } else {
      real = look_up(RTLD_NEXT, "dlsym", "GLIBC_2.34");
      if (real == nullptr) real = look_up(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    }
    __atomic_store_n(&cached, real, __ATOMIC_RELEASE);
  }
  return reinterpret_cast<Dlsym>(real);
}

AMEM_RUNS_BEFORE_SANITIZERS Dlvsym real_dlvsym() {
  static void* cached = nullptr;
  void* real = __atomic_load_n(&cached, __ATOMIC_ACQUIRE);
  if (real == nullptr) {
    real = c_library_symbol("dlvsym");
    __atomic_store_n(&cached, real, __ATOMIC_RELEASE);
  }
  return reinterpret_cast<Dlvsym>(real);
}

FindObject find_object() {
  static const auto found = reinterpret_cast<FindObject>(c_library_symbol("_dl_find_object"));
  return found;
}

void* driver_symbol(const char* symbol) {
  // Not RTLD_NEXT: that may find a stub of somebody's that leads back here, and does not look where
  // a module loaded with RTLD_LOCAL brings its libcuda.
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* found = real_dlsym()(library, symbol);
  ::dlclose(library);
  return found;
}

void* no_such_symbol(const char* symbol) {
  // In our own file, which has none of that name. It stays open: to close it would succeed, and
  // dlerror would have nothing to say.
  static void* const own = [] {
    const link_map* map = map_of(reinterpret_cast<const void*>(&no_such_symbol));
    return map != nullptr ? ::dlopen(map->l_name, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  }();
  if (own == nullptr || real_dlsym()(own, symbol) == nullptr) return nullptr;
  // A row that AMEM_FORGET_CALLS names is exported nevertheless. The C library has no driver call.
  static void* const c_library = ::dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  return c_library != nullptr ? real_dlsym()(c_library, symbol) : nullptr;
}

void* next_symbol(const char* symbol) { return real_dlsym()(RTLD_NEXT, symbol); }

void* symbol_for(const void* code, const char* name, const char* version) {
  const link_map* map = map_of(code);
  if (map == nullptr) return nullptr;
  void* library = ::dlopen(map->l_name[0] != '\0' ? map->l_name : nullptr, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* found =
      version != nullptr ? real_dlvsym()(library, name, version) : real_dlsym()(library, name);
  ::dlclose(library);
  return found;
}

bool precedes_us(const void* code) {
  const link_map* theirs = map_of(code);
  const link_map* ours = map_of(reinterpret_cast<const void*>(&precedes_us));
  if (theirs == nullptr || ours == nullptr) return false;
  // In the order of the search, and unchanged since the process began.
  for (const link_map* m = ours->l_prev; m != nullptr; m = m->l_prev)
    if (m == theirs) return true;
  return false;
}

}  // namespace amem::shim
