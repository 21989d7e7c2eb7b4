// What programs call by name to read the saved bytes of their memory while it is paused.
#include <cstddef>
#include <cstdint>

#include "shim/calls/error_out.h"
#include "shim/runtime/backup.h"
#include "shim/runtime/runtime.h"

using amem::Code;
using amem::Status;
using amem::shim::report;
using amem::shim::Runtime;
using amem::shim::turned_off;

#define AMEM_PUBLIC extern "C" __attribute__((visibility("default")))

/// The bytes that this memory had when it was paused. NOT_FOUND: it is on its device.
AMEM_PUBLIC int amem_shim_backup_read(std::uint64_t address, std::uint64_t bytes, void* out,
                                      char* error, std::size_t size) {
  if (Runtime::disabled()) return report(turned_off(), error, size);
  return report(read_backup(Runtime::get(), address, bytes, static_cast<std::byte*>(out)), error,
                size);
}

/// Where they are, until the resume; nullptr: not in one piece, and so they can only be read.
AMEM_PUBLIC int amem_shim_backup_view(std::uint64_t address, std::uint64_t bytes, const void** view,
                                      char* error, std::size_t size) {
  *view = nullptr;
  if (Runtime::disabled()) return report(turned_off(), error, size);
  const amem::Result<const void*> found = view_backup(Runtime::get(), address, bytes);
  if (found.ok()) *view = found.value();
  return report(found.status(), error, size);
}
