// AMem's five NCCL calls, one of NCCL's that is refused, and the entry points of libamem_client's
// in-process part.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/process/symbols.h"

namespace amem::shim {

/// Our implementation of one of AMem's calls by name, for lookups in an NCCL that has none; nullptr
/// for other names.
void* find_nccl_call(const char* name);

/// What a lookup of one of NCCL's own calls, which has found this, answers instead.
SymbolAnswer replace_nccl_call(const char* name, void* found);

}  // namespace amem::shim
