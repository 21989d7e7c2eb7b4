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
using ShimOperation = int (*)(const char* const* tags, size_t count, uint32_t timeout_ms,
                              char* error, size_t size);
/// The older first. Each has what those before it have.
using ShimRequest2 = int (*)(int op, const char* const* tags, size_t count,
                             const char* const* except_tags, size_t except_count,
                             const char* const* discard, size_t discard_count, int guests,
                             uint32_t timeout_ms, char* error, size_t size);
using ShimRequest3 = int (*)(int op, const char* const* tags, size_t count,
                             const char* const* except_tags, size_t except_count,
                             const char* const* discard, size_t discard_count, int guests, int deep,
                             uint32_t timeout_ms, char* error, size_t size);
using ShimRequest4 = int (*)(int op, const char* const* tags, size_t count,
                             const char* const* except_tags, size_t except_count,
                             const char* const* discard, size_t discard_count, int guests, int deep,
                             int force, uint32_t timeout_ms, char* error, size_t size);
using ShimSetGroup = int (*)(const char* group, char* error, size_t size);
using ShimRegionBegin = int (*)(const char* tag, int policy, char* error, size_t size);
/// The end of a region, and both ends of what is unbrokered.
using ShimMark = int (*)(char* error, size_t size);
using ShimGroup = int (*)(char* name, size_t size);
using ShimStats = int (*)(char* json, size_t size);
using ShimActive = int (*)();

/// What every shim has had.
constexpr const char* kShimIsHere = "amem_shim_active";

template <class Function>
Function find_in_shim(const char* name) {
  // Not cached: a lookup costs nothing beside a pause.
  return reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
}

bool no_shim() { return find_in_shim<void*>(kShimIsHere) == nullptr; }

Status missing(const char* name) {
  if (no_shim()) {
    return {Code::kFailedPrecondition,
            "libamem_shim.so is not loaded in this process. Start the process with `amemctl run "
            "--group NAME -- COMMAND`, or with LD_PRELOAD=libamem_shim.so and AMEM_GROUP=NAME in "
            "its environment"};
  }
  return {Code::kFailedPrecondition, std::string("the libamem_shim.so of this process has another "
                                                 "version than libamem_client: it lacks ") +
                                         name};
}

/// Calls a function of the shim, which fills a text and returns a code.
template <class Function, class... Arguments>
Status call_shim(const char* name, Arguments... arguments) {
  const auto function = find_in_shim<Function>(name);
  if (function == nullptr) return missing(name);
  char text[sizeof amem_error::text] = "";
  const int code = function(arguments..., text, sizeof text);
  text[sizeof text - 1] = '\0';
  if (code == 0) return {};
  return {static_cast<Code>(code), text};
}

/// The shim's function `name`; no tags: everything.
int operate(const char* name, const char* const* tags, size_t count, uint32_t timeout_ms,
            amem_error* error) {
  return amem::client::guarded(
      error, [&] { return call_shim<ShimOperation>(name, tags, count, timeout_ms); });
}

int check(const char* const* tags, size_t count, const char* everything, amem_error* error) {
  return amem::client::guarded(error,
                               [&] { return amem::client::check_tags(tags, count, everything); });
}

/// op: 1 a pause, 2 a resume. An older shim does, where it is enough.
int request(int op, const amem_selection* selection, uint32_t timeout_ms, amem_error* error) {
  return amem::client::guarded(error, [&]() -> Status {
    const auto read = amem::client::read_selection(selection);
    if (!read.ok()) return read.status();
    const amem_selection& what = read.value();
    if (what.force != 0)
      return call_shim<ShimRequest4>("amem_shim_request_4", op, what.tags, what.tag_count,
                                     what.except_tags, what.except_count, what.discard,
                                     what.discard_count, static_cast<int>(what.guests), what.deep,
                                     what.force, timeout_ms);
    if (what.deep != 0)
      return call_shim<ShimRequest3>(
          "amem_shim_request_3", op, what.tags, what.tag_count, what.except_tags, what.except_count,
          what.discard, what.discard_count, static_cast<int>(what.guests), what.deep, timeout_ms);
    return call_shim<ShimRequest2>("amem_shim_request_2", op, what.tags, what.tag_count,
                                   what.except_tags, what.except_count, what.discard,
                                   what.discard_count, static_cast<int>(what.guests), timeout_ms);
  });
}

/// Without a shim there is nothing to mark.
int mark(const char* name, amem_error* error) {
  return amem::client::guarded(error,
                               [&] { return no_shim() ? Status() : call_shim<ShimMark>(name); });
}

/// What the shim says, whoever has set it; empty without one, or when amem is turned off.
std::string group_of_shim() {
  char name[64] = "";
  if (const auto group = find_in_shim<ShimGroup>("amem_shim_group"); group != nullptr)
    group(name, sizeof name);
  return name;
}

/// The shim's rule, which holds without the shim too.
std::string group_of_environment() {
  const char* name = std::getenv("AMEM_GROUP");
  if (name == nullptr || *name == '\0') name = std::getenv("AMEM_GROUPID");
  return name != nullptr && amem::valid_group_name(name) ? name : "default";
}

}  // namespace

int amem_is_active(void) {
  const auto active = find_in_shim<ShimActive>(kShimIsHere);
  return active != nullptr && active() != 0 ? 1 : 0;
}

int amem_group(char* buffer, size_t size, amem_error* error) {
  return amem::client::guarded(error, [&]() -> Status {
    std::string name = group_of_shim();
    if (name.empty()) name = group_of_environment();
    if (buffer == nullptr || name.size() >= size) {
      return {Code::kOutOfRange, "the group's name requires a buffer of " +
                                     std::to_string(name.size() + 1) + " bytes"};
    }
    std::memcpy(buffer, name.c_str(), name.size() + 1);
    return {};
  });
}

int amem_set_group(const char* group, amem_error* error) {
  return amem::client::guarded(error, [&]() -> Status {
    const std::string name = group != nullptr ? group : "";
    return call_shim<ShimSetGroup>("amem_shim_set_group", name.c_str());
  });
}

int amem_pause(uint32_t timeout_ms, amem_error* error) {
  return operate("amem_shim_pause", nullptr, 0, timeout_ms, error);
}

int amem_resume(uint32_t timeout_ms, amem_error* error) {
  return operate("amem_shim_resume", nullptr, 0, timeout_ms, error);
}

int amem_pause_tags(const char* const* tags, size_t count, uint32_t timeout_ms, amem_error* error) {
  const int code = check(tags, count, "amem_pause", error);
  return code != AMEM_OK ? code : operate("amem_shim_pause", tags, count, timeout_ms, error);
}

int amem_resume_tags(const char* const* tags, size_t count, uint32_t timeout_ms,
                     amem_error* error) {
  const int code = check(tags, count, "amem_resume", error);
  return code != AMEM_OK ? code : operate("amem_shim_resume", tags, count, timeout_ms, error);
}

int amem_pause_selected(const amem_selection* selection, uint32_t timeout_ms, amem_error* error) {
  return request(1, selection, timeout_ms, error);
}

int amem_resume_selected(const amem_selection* selection, uint32_t timeout_ms, amem_error* error) {
  return request(2, selection, timeout_ms, error);
}

int amem_set_tag_policy(const char* tag, amem_policy policy, amem_error* error) {
  return amem::client::guarded(error, [&]() -> Status {
    if (tag == nullptr || *tag == '\0') return {Code::kInvalidArgument, "the tag is empty"};
    if (policy < AMEM_POLICY_KEEP || policy > AMEM_POLICY_DISCARD_FORCED)
      return {Code::kInvalidArgument, "the policy must be keep or discard"};
    return call_shim<ShimRegionBegin>("amem_shim_set_policy", tag, static_cast<int>(policy));
  });
}

int amem_region_begin(const char* tag, amem_policy policy, amem_error* error) {
  return amem::client::guarded(error, [&]() -> Status {
    if (tag == nullptr || *tag == '\0') return {Code::kInvalidArgument, "the tag is empty"};
    if (no_shim()) return {};
    return call_shim<ShimRegionBegin>("amem_shim_region_begin", tag, static_cast<int>(policy));
  });
}

int amem_region_end(amem_error* error) { return mark("amem_shim_region_end", error); }

int amem_unbrokered_begin(amem_error* error) { return mark("amem_shim_unbrokered_begin", error); }

int amem_unbrokered_end(amem_error* error) { return mark("amem_shim_unbrokered_end", error); }

int amem_rank_stats(char** json, amem_error* error) {
  return amem::client::guarded(error, [&]() -> Status {
    const auto stats = find_in_shim<ShimStats>("amem_shim_stats");
    if (stats == nullptr) return missing("amem_shim_stats");
    std::string text(4096, '\0');
    for (;;) {
      const int length = stats(text.data(), text.size());
      if (length < 0) return {Code::kInternal, "the shim could not provide its statistics"};
      if (static_cast<size_t>(length) < text.size()) {
        text.resize(static_cast<size_t>(length));
        return amem::client::give(text, json);
      }
      // It may have grown again by the next try.
      text.resize(static_cast<size_t>(length) + 1024);
    }
  });
}
