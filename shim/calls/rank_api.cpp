// What a program's ranks call besides pause and resume: regions, figures, the end of Python, the
// saved bytes of their memory while it is paused. Entry points of libamem_client's in-process part.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "shim/base/log.h"
#include "shim/base/region.h"
#include "shim/calls/error_out.h"
#include "shim/process/python.h"
#include "shim/runtime/backup.h"
#include "shim/runtime/runtime.h"

using amem::Status;
using amem::shim::Python;
using amem::shim::Region;
using amem::shim::report;
using amem::shim::Runtime;
using amem::shim::turned_off;

namespace {

void warn_once_of_scope() {
  static std::atomic<bool> warned{false};
  if (Runtime::get().options().scope != amem::shim::Scope::kNccl || warned.exchange(true)) return;
  amem::shim::log_warn(
      "a region has begun, but amem brokers only NCCL's memory. Memory of this region stays on the "
      "GPU during a pause. Set AMEM_SCOPE=regions or AMEM_SCOPE=heap");
}

}  // namespace

#define AMEM_PUBLIC extern "C" __attribute__((visibility("default")))

// Turned off, regions have no effect but their rules.
AMEM_PUBLIC int amem_shim_region_begin(const char* tag, int policy, char* error, std::size_t size) {
  const Status status = Region::begin(tag != nullptr ? tag : "", policy);
  if (status.ok() && !Runtime::disabled()) warn_once_of_scope();
  return report(status, error, size);
}

AMEM_PUBLIC int amem_shim_region_end(char* error, std::size_t size) {
  return report(Region::end(), error, size);
}

AMEM_PUBLIC int amem_shim_unbrokered_begin(char* error, std::size_t size) {
  return report(Region::begin_unbrokered(), error, size);
}

AMEM_PUBLIC int amem_shim_unbrokered_end(char* error, std::size_t size) {
  return report(Region::end_unbrokered(), error, size);
}

/// policy: 1 keep, 2 discard, 3 discard also the heap.
AMEM_PUBLIC int amem_shim_set_policy(const char* tag, int policy, char* error, std::size_t size) {
  if (Runtime::disabled())
    return report(
        {amem::Code::kFailedPrecondition, "amem is turned off in this process (AMEM_DISABLE)"},
        error, size);
  const bool force = policy == 3;
  return report(set_policy(Runtime::get(), tag != nullptr ? tag : "",
                           force ? amem_v1_RegionPolicy_REGION_POLICY_DISCARD
                                 : static_cast<amem_v1_RegionPolicy>(policy),
                           force),
                error, size);
}

/// Python's atexit functions are about to run.
AMEM_PUBLIC int amem_shim_interpreter_ends() {
  Python::tell_ending();
  return 0;
}

/// As snprintf: writes at most `size` bytes with the final zero, and returns the length of the
/// whole.
AMEM_PUBLIC int amem_shim_stats(char* json, std::size_t size) {
  const std::string text =
      Runtime::disabled()
          ? R"({"group":"","rank_id":0,"scope":"off","brokered":[],"unbrokered":[]})"
          : Runtime::get().stats();
  if (json != nullptr && size > 0) {
    const std::size_t n = text.copy(json, size - 1);
    json[n] = '\0';
  }
  return static_cast<int>(text.size());
}

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
