// AMem's five NCCL calls, and the entry points of libamem_client's in-process part.
#pragma once

#include <cstddef>
#include <cstdint>

namespace amem::shim {

/// Our implementation of one of AMem's calls by name, for lookups in an NCCL that has none; nullptr
/// for other names.
void* find_nccl_call(const char* name);

}  // namespace amem::shim
