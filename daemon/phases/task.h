// Task: what an operation is to do: pause or resume, and which of a group's allocations. Plain
// values.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace amem {

enum class Operation : std::uint8_t { kPause, kResume };
std::string_view to_string(Operation op);

/// Which allocations: those of some tags, or all.
struct Selection {
  std::set<std::string> tags;  // empty: all

  bool all() const { return tags.empty(); }
  bool takes(const std::string& tag) const { return all() || tags.contains(tag); }
  friend bool operator==(const Selection&, const Selection&) = default;
};

/// "tag kv_cache", "tags kv_cache, weights"; "" for all.
std::string to_string(const Selection& selection);

struct Task {
  // Implicit: a bare operation is one on everything.
  Task(Operation operation, Selection what = {}) : op(operation), selection(std::move(what)) {}

  Operation op;
  Selection selection;
  friend bool operator==(const Task&, const Task&) = default;
};

/// "pause of group 'train'", "resume of tag weights of group 'train'".
std::string describe(const Task& task, const std::string& group);

}  // namespace amem
