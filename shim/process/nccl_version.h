// Which NCCL a library is, by its own word. Any thread.
#pragma once

#include <string>

namespace amem::shim {

/// ncclGetVersion's number of the library with this code; 0: it does not say.
int nccl_version_of(const void* code);

/// "NCCL 2.28.9".
std::string nccl_name(int version);

}  // namespace amem::shim
