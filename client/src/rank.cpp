// The calls of amem.h for a rank. They reach the shim of this process by name, so that this library
// neither links it nor loads it: a shim that comes after start-up would have missed the
// allocations.
#include <amem/amem.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "client/src/error_out.h"
#include "common/protocol.h"

namespace {

using amem::Code;
using amem::Status;

/// The shim's exported functions.
using ShimOperation = int (*)(uint32_t timeout_ms, char* error, size_t error_size);
using ShimActive = int (*)();

template <class Function>
Function find_in_shim(const char* name) {
  // Not cached: a lookup costs nothing beside a pause.
  return reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
}

int call_shim(const char* name, uint32_t timeout_ms, amem_error* error) {
  return amem::client::guarded(error, [&]() -> Status {
    const auto operation = find_in_shim<ShimOperation>(name);
    if (operation == nullptr) {
      return {Code::kFailedPrecondition,
              "libamem_shim.so is not loaded in this process: start it with `amemctl run --group "
              "NAME -- COMMAND`, or with LD_PRELOAD=libamem_shim.so and AMEM_GROUP=NAME in its "
              "environment"};
    }
    char text[sizeof error->text] = "";
    const int code = operation(timeout_ms, text, sizeof text);
    text[sizeof text - 1] = '\0';
    if (code == 0) return {};
    return {static_cast<Code>(code), text};
  });
}

}  // namespace

int amem_is_active(void) {
  const auto active = find_in_shim<ShimActive>("amem_shim_active");
  return active != nullptr && active() != 0 ? 1 : 0;
}

int amem_group(char* buffer, size_t size, amem_error* error) {
  return amem::client::guarded(error, [&]() -> Status {
    // The shim's rule, which holds without the shim too.
    const char* name = std::getenv("AMEM_GROUP");
    if (name == nullptr || *name == '\0') name = std::getenv("AMEM_GROUPID");
    if (name == nullptr || !amem::valid_group_name(name)) name = "default";
    const std::size_t length = std::strlen(name);
    if (buffer == nullptr || length >= size) {
      return {Code::kOutOfRange,
              "the group's name needs a buffer of " + std::to_string(length + 1) + " bytes"};
    }
    std::memcpy(buffer, name, length + 1);
    return {};
  });
}

int amem_pause(uint32_t timeout_ms, amem_error* error) {
  return call_shim("amem_shim_pause", timeout_ms, error);
}

int amem_resume(uint32_t timeout_ms, amem_error* error) {
  return call_shim("amem_shim_resume", timeout_ms, error);
}
