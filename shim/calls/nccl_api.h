// AMem's five NCCL calls, two of NCCL's that slabs do not support, and the entry points of
// libamem_client's in-process part.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/process/symbols.h"

namespace amem::shim {

/// Our implementation of one of AMem's calls by name, for lookups in an NCCL that has none; nullptr
/// for other names.
void* find_nccl_call(const char* name);

/// A lookup of this call of NCCL's own is answered by us.
bool replaces_nccl_call(const char* name);

/// Returns what such a lookup of this caller's, which has found this, answers instead. REQUIRES:
/// replaces_nccl_call(name).
SymbolAnswer replace_nccl_call(const char* name, void* found, const void* caller);

}  // namespace amem::shim
