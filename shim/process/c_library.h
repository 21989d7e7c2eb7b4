// The C library's own functions, found without asking it: of dlsym and dlvsym, by which one would
// ask, the process has the shim's.
#pragma once

#include <link.h>

namespace amem::shim {

/// A function that the C library exports; nullptr when it has none of that name. Reads the
/// library's tables, which the loader has mapped before any code could run. Needs no malloc.
void* c_library_symbol(const char* name);

/// The same of any object, by its l_addr and l_ld.
void* exported_function(const link_map& object, const char* name);

}  // namespace amem::shim
