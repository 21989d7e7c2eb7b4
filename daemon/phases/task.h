// Task: what an operation is to do: pause or resume, which of a group's allocations, and whose
// bytes it drops. And which half of a transaction it is. Plain values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/base/ids.h"

namespace amem {

enum class Operation : std::uint8_t { kPause, kResume };
std::string_view to_string(Operation op);

/// Which allocations: those of some tags, all but those of some tags, or all; of all ranks of the
/// group, or of some.
struct Selection {
  std::set<std::string> tags;   // empty: all
  bool except = false;          // all but these
  std::set<RankId> ranks = {};  // only these take part; empty: all ranks of the group

  /// Of all tags.
  bool all() const { return tags.empty(); }
  bool local() const { return !ranks.empty(); }
  /// Whether the rank takes part.
  bool of(RankId rank) const { return !local() || ranks.contains(rank); }
  bool takes(const std::string& tag) const { return all() || tags.contains(tag) != except; }
  /// An allocation with this tag. What a rank that takes no part shares, too, is not taken.
  template <class Ranks>
  bool takes(const std::string& tag, const Ranks& sharers) const {
    return takes(tag) && (!local() || (!sharers.empty() &&
                                       std::all_of(sharers.begin(), sharers.end(),
                                                   [this](RankId rank) { return of(rank); })));
  }
  friend bool operator==(const Selection&, const Selection&) = default;
};

/// "tag kv_cache", "tags kv_cache, weights", "all but tag weights"; "" for all.
std::string to_string(const Selection& selection);

/// What a pause does with memory that ranks of other groups have open still when it has waited.
enum class GuestPolicy : std::uint8_t {
  kDefault,  // the configured one
  kPin,      // it stays on its device
  kRefuse,   // the group runs on
};

struct Task {
  // Implicit: a bare operation is one on everything.
  Task(Operation operation, Selection what = {}, std::set<std::string> drops = {},
       GuestPolicy policy = GuestPolicy::kDefault)
      : op(operation), selection(std::move(what)), discard(std::move(drops)), guests(policy) {}

  Operation op;
  Selection selection;
  std::set<std::string> discard;  // of a pause: drops the bytes of these, whatever their policy
  GuestPolicy guests = GuestPolicy::kDefault;  // of a pause
  bool force = false;                          // of a pause: it may drop the heap's bytes
  bool deep = false;     // of a pause of everything: nothing of its processes stays on the devices
  bool partial = false;  // of a pause of a part: the group does not run on without it

  /// The group does not run afterwards.
  bool stops() const { return op == Operation::kPause && (selection.all() || partial); }
  /// The same, of these ranks alone.
  Task of(std::set<RankId> ranks) const {
    Task task = *this;
    task.selection.ranks = std::move(ranks);
    return task;
  }
  friend bool operator==(const Task&, const Task&) = default;
};

/// "pause of group 'train'", "resume of tag weights of group 'train'", "pause of group 'train',
/// dropping tag kv_cache".
std::string describe(const Task& task, const std::string& group);

/// Of a transaction, what goes out of the devices, or what comes in.
enum class Side : std::uint8_t { kOut, kIn };
/// In the order in which a transaction goes on.
inline constexpr std::array kSides = {Side::kOut, Side::kIn};

/// One of each.
template <class What>
class PerSide {
 public:
  What& operator[](Side side) { return each_[static_cast<std::size_t>(side)]; }
  const What& operator[](Side side) const { return each_[static_cast<std::size_t>(side)]; }
  auto begin() const { return each_.begin(); }
  auto end() const { return each_.end(); }

 private:
  std::array<What, 2> each_{};
};

/// Whether an operation has others to wait for. If so it must not release, or open, before it is
/// told to go on. kAcrossNodes: other nodes, too; then its cut is taken over all of them, by
/// somebody else.
enum class Barrier : std::uint8_t { kNone, kWithinNode, kAcrossNodes };

}  // namespace amem
