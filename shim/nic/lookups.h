// Lookups of NIC calls: what dlsym and dlvsym answer, and which function a linked caller means.
#pragma once

#include "shim/nic/nic_calls.h"
#include "shim/process/symbols.h"

namespace amem::shim {

/// The name may be one of nic_calls.inc; nearly every other name is told apart here.
AMEM_RUNS_BEFORE_SANITIZERS inline bool may_be_nic_call(const char* name) {
  return (name[0] == 'i' && name[1] == 'b' && name[2] == 'v') ||
         (name[0] == 'm' && name[1] == 'l' && name[2] == 'x') ||
         (name[0] == 'g' && name[1] == 'd' && name[2] == 'r') ||
         (name[0] == 'c' && name[1] == 'u' && name[2] == 'F' && name[3] == 'i' && name[4] == 'l');
}

/// `version`: dlvsym's; nullptr for dlsym.
SymbolAnswer find_nic_symbol(void* handle, const char* name, const char* version,
                             const void* caller);

/// The function that the caller of our export is linked to; nullptr: there is none.
void* linked_nic_function(NicRow row, const void* caller);

}  // namespace amem::shim
