// Symbols: where a name leads past the shim, which supplies `dlsym` and exports driver calls.
#pragma once

#include <link.h>

// In a build with sanitizers their runtime looks its own functions up with our dlsym, before
// instrumented code can run.
#define AMEM_RUNS_BEFORE_SANITIZERS __attribute__((no_sanitize("address,undefined,thread")))

namespace amem::shim {

/// dlsym of the C library, without us.
using Dlsym = void* (*)(void* handle, const char* name);
Dlsym real_dlsym();

/// The same for dlvsym of the C library.
using Dlvsym = void* (*)(void* handle, const char* name, const char* version);
Dlvsym real_dlvsym();

/// What _dl_find_object says of the object with an address.
struct FoundObject {
  unsigned long long flags = 0;
  void* begin = nullptr;
  void* end = nullptr;
  link_map* map = nullptr;
  void* eh_frame = nullptr;  // its PT_GNU_EH_FRAME
  unsigned long long reserved[7] = {};
};

/// The C library's _dl_find_object, which takes no lock; nullptr before 2.35.
using FindObject = int (*)(void* address, FoundObject* found);
FindObject find_object();

/// What a lookup answers instead of the C library's; not ours: ask the C library.
struct SymbolAnswer {
  void* address = nullptr;
  bool ours = false;
};

/// The driver's own function, out of libcuda.so.1 itself; nullptr when that is not loaded or has
/// none. Wrappers go on to this and to nothing else.
void* driver_symbol(const char* symbol);

/// Answers a lookup as when no library has the symbol: nullptr, and dlerror says so.
void* no_such_symbol(const char* symbol);

/// Returns what the libraries behind us have of this name; nullptr, with dlerror set, if they have
/// none.
void* next_symbol(const char* symbol);

/// Returns what the library with this code, and those that it is linked to, have of this name;
/// `version` may be nullptr.
void* symbol_for(const void* code, const char* name, const char* version);

/// A library that was preloaded in front of us, or the program, has this code.
bool precedes_us(const void* code);

// The C library's own functions, found without asking it: of dlsym and dlvsym, by which one would
// ask, the process has the shim's.

/// A function that the C library exports; nullptr when it has none of that name. Reads the
/// library's tables, which the loader has mapped before any code could run. Needs no malloc.
void* c_library_symbol(const char* name);

/// The same of any object, by its l_addr and l_ld.
void* exported_function(const link_map& object, const char* name);

}  // namespace amem::shim
