// NIC calls: what nic_calls.inc names, and the functions that programs get for them.
//
// Several libraries of one name may be in a process. So each function of a library has a wrapper of
// its own, which goes on to that one. What programs are linked to is exported, and looks for the
// library of its caller each time: that costs little beside a registration.
#pragma once

#include "shim/process/symbols.h"
namespace amem::shim {

enum NicRow {
#define LINKED(symbol, library, version) kNic_##symbol,
#define EXPORTED(symbol, library) kNic_##symbol,
#define LOOKED_UP(symbol) kNic_##symbol,
#include "shim/nic/nic_calls.inc"
  kNicRows
};

struct NicCall {
  const char* symbol;
  const char* library;  // nullptr where nobody is linked to it
  const char* version;  // nullptr where it has none
};
const NicCall& nic_call(NicRow row);
/// kNicRows: none of ours.
NicRow find_nic_call(const char* symbol);

/// Returns the wrapper of a library's function, the same one while the library is loaded. Returns
/// the function itself, with an error in the log, if there are more such libraries than anybody
/// has.
void* nic_wrapper(NicRow row, void* real);

/// The code address is one of our exports, where a lookup wanted the library's function.
bool is_nic_export(const void* code);

// What dlsym and dlvsym answer, and which function a linked caller means.

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
