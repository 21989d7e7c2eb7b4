// Direct calls: entry points for programs that are linked to libcuda instead of looking its calls
// up.
//
// The shim exports each symbol that driver_calls.inc wraps. Being preloaded, its definitions are
// the ones that programs and extension modules bind to. Each is a jump: at first to a resolver that
// finds the driver's function and the row's wrapper, from then on to that wrapper. Arguments and
// return address are the caller's own throughout. A process that makes no such call pays nothing.
//
// Another library that wraps driver calls comes before us in LD_PRELOAD: programs then bind to it,
// and what it looks up leads to us. Behind us it would be called by nobody.
#pragma once

namespace amem::shim {

/// Says, once, when a library behind us has the symbol, too: it is not called.
void warn_of_bypassed(const char* symbol, const void* driver_function);

/// The code address is one of our exported jumps, where a lookup wanted the driver's function.
bool is_direct(const void* code);

}  // namespace amem::shim
