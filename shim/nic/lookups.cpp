#include "shim/nic/lookups.h"

#include <dlfcn.h>

#include "shim/base/trace.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

void* look_up(void* handle, const char* name, const char* version) {
  return version != nullptr ? real_dlvsym()(handle, name, version) : real_dlsym()(handle, name);
}

}  // namespace

SymbolAnswer find_nic_symbol(void* handle, const char* name, const char* version,
                             const void* caller) {
  const NicRow row = find_nic_call(name);
  if (row == kNicRows) return {};
  // Who comes behind us is called by us, and so was noticed.
  if (handle == RTLD_NEXT && !precedes_us(caller)) return {};
  void* found = look_up(handle, name, version);
  // A lookup in the whole process may find our export first, whether or not there is a library.
  const bool ours = is_nic_export(found);
  if (ours) found = look_up(RTLD_NEXT, name, version);
  if (found == nullptr && handle == RTLD_DEFAULT) found = symbol_for(caller, name, version);
  if (is_nic_export(found)) found = nullptr;  // of a caller that is the program itself
  // Asked once more, so that dlerror says why.
  if (found == nullptr) return {ours ? look_up(RTLD_NEXT, name, version) : nullptr, ours};
  ::dlerror();  // what was not found on the way is no news to anybody
  if (Runtime::disabled()) return {found, true};
  trace("dlsym %s", name);
  return {nic_wrapper(row, found), true};
}

void* linked_nic_function(NicRow row, const void* caller) {
  const auto& [symbol, library, version] = nic_call(row);
  // Of a module that was loaded with RTLD_LOCAL only its own scope knows the library.
  void* found = symbol_for(caller, symbol, version);
  if (found != nullptr && !is_nic_export(found)) return found;
  found = look_up(RTLD_NEXT, symbol, version);
  if (found != nullptr) return found;
  void* const loaded = ::dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (loaded == nullptr) return nullptr;
  found = look_up(loaded, symbol, version);
  ::dlclose(loaded);
  return found;
}

}  // namespace amem::shim
