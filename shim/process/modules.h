// Which libraries' memory is brokered: decided by the file a call comes from. And which NCCL a
// library is, by its own word. Any thread.
//
// Every allocation asks. So the answer needs no lock of the loader's: whoever loads a library holds
// that while the library's constructors run, and these may wait for a thread that allocates.
#pragma once

#include <string>
#include <vector>

namespace amem::shim {

/// True when the file's base name begins with the prefix, or with one of them.
bool matches_module(const char* path, const char* prefix);
bool matches_module(const char* path, const std::vector<std::string>& prefixes);

/// Returns the loader's path of the file that this code address belongs to, or "" if it belongs to
/// none. Valid while that file is loaded; it stays loaded while its code calls.
const char* file_of(const void* code_address);
/// The same for C libraries without _dl_find_object (before 2.35): slower, and with the lock that
/// the loader holds while it adds an object to its list.
const char* file_of_by_walk(const void* code_address);

/// Base name of the file that this code address belongs to; "" when it belongs to none.
std::string module_of(const void* code_address);

/// ncclGetVersion's number of the library with this code; 0: it does not say.
int nccl_version_of(const void* code);

/// "NCCL 2.28.9".
std::string nccl_name(int version);

}  // namespace amem::shim
