// NIC calls: what nic_calls.inc names, and the functions that programs get for them.
//
// Several libraries of one name may be in a process. So each function of a library has a wrapper of
// its own, which goes on to that one. What programs are linked to is exported, and looks for the
// library of its caller each time: that costs little beside a registration.
#pragma once

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

/// The wrapper of a library's function, the same one as long as the library is loaded. The function
/// itself, with an error in the log, when there are more such libraries than anybody has.
void* nic_wrapper(NicRow row, void* real);

/// The code address is one of our exports, where a lookup wanted the library's function.
bool is_nic_export(const void* code);

}  // namespace amem::shim
