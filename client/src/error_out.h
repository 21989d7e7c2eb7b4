// How the C functions answer: a Status becomes a code and, when asked for, a filled amem_error; a
// string becomes the caller's. Nothing of C++ passes the boundary, exceptions (out of memory)
// included. Any thread.
#pragma once

#include <amem/amem.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "common/packet.h"
#include "common/status.h"

namespace amem::client {

inline int report(const Status& status, amem_error* error) {
  if (error != nullptr) {
    error->code = static_cast<int32_t>(status.code());
    set_text(error->text, status.text());
  }
  return static_cast<int>(status.code());
}

/// Hands a string to the caller, who frees it with amem_free.
inline Status give(const std::string& text, char** out) {
  if (out == nullptr) return {Code::kInvalidArgument, "the output argument is NULL"};
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return {Code::kResourceExhausted, "out of memory"};
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
  return {};
}

/// A program's options or selection, called `name`. It may be built against another version of
/// amem.h: what it does not know stays zero. NULL: everything does.
template <class Struct>
Result<Struct> read_sized(const Struct* from, const char* name) {
  Struct given{};
  if (from == nullptr) return given;
  if (from->size < sizeof(from->size))
    return Status(Code::kInvalidArgument, std::string(name) + ".size is not set");
  std::memcpy(&given, from, std::min(from->size, sizeof given));
  return given;
}

/// `list`: the argument or member of that name, with so many strings.
inline Status check_list(const char* const* list, std::size_t count, const char* name) {
  if (list == nullptr && count > 0)
    return {Code::kInvalidArgument, std::string(name) + " is NULL, but its count is " +
                                        std::to_string(count) + ". Pass the list, or a count of 0"};
  for (std::size_t i = 0; i < count; ++i)
    if (list[i] == nullptr)
      return {Code::kInvalidArgument, std::string(name) + "[" + std::to_string(i) + "] is NULL"};
  return {};
}

/// The tags of a call that is about chosen ones. `everything`: the call that is not.
inline Status check_tags(const char* const* tags, std::size_t count, const char* everything) {
  if (count == 0)
    return {Code::kInvalidArgument,
            std::string("the list of tags is empty. Name at least one tag, or call ") + everything +
                "() for all memory"};
  return check_list(tags, count, "tags");
}

/// A program's selection. kInvalidArgument: one of its lists.
inline Result<amem_selection> read_selection(const amem_selection* from) {
  Result<amem_selection> read = read_sized(from, "amem_selection");
  if (!read.ok()) return read;
  const amem_selection& what = read.value();
  for (const Status& status : {check_list(what.tags, what.tag_count, "tags"),
                               check_list(what.except_tags, what.except_count, "except_tags"),
                               check_list(what.discard, what.discard_count, "discard")})
    if (!status.ok()) return status;
  return read;
}

/// Runs `body`, which returns a Status, as the body of a C function.
template <class Body>
int guarded(amem_error* error, Body body) noexcept {
  try {
    return report(body(), error);
  } catch (const std::exception& e) {
    if (error != nullptr) {
      error->code = AMEM_ERROR_INTERNAL;
      std::size_t n = 0;
      for (const char* c = e.what(); *c != '\0' && n + 1 < sizeof error->text; ++c) {
        error->text[n++] = *c;
      }
      error->text[n] = '\0';
    }
    return AMEM_ERROR_INTERNAL;
  }
}

}  // namespace amem::client
