// Symbols: where a name leads past the shim, which supplies `dlsym` and exports driver calls.
#pragma once

// In a build with sanitizers their runtime looks its own functions up with our dlsym, before
// instrumented code can run.
#define AMEM_RUNS_BEFORE_SANITIZERS __attribute__((no_sanitize("address,undefined,thread")))

namespace amem::shim {

/// dlsym of the C library, without us.
using Dlsym = void* (*)(void* handle, const char* name);
Dlsym real_dlsym();

/// The driver's own function, out of libcuda.so.1 itself; nullptr when that is not loaded or has
/// none. Wrappers go on to this and to nothing else.
void* driver_symbol(const char* symbol);

/// What the libraries behind us have of this name; nullptr, with dlerror set, when they have none.
void* next_symbol(const char* symbol);

/// A library that was preloaded in front of us, or the program, has this code.
bool precedes_us(const void* code);

}  // namespace amem::shim
