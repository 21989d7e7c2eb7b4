// Which libraries' memory is brokered: decided by the file a call comes from. Any thread.
#pragma once

#include <string>
#include <vector>

namespace amem::shim {

/// True when the file's base name begins with one of the prefixes.
bool matches_module(const char* path, const std::vector<std::string>& prefixes);

/// Base name of the file that this code address belongs to; "" when it belongs to none.
std::string module_of(const void* code_address);

}  // namespace amem::shim
