// The groups of a stage that take turns, as one decision sees them: what each has, and may do, now.
//
// For the files of this folder. Pure. Not synchronised.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/turns/load.h"
#include "daemon/turns/longest_wait.h"
#include "daemon/turns/view.h"

namespace amem {

/// Returns `at` + `by`, also for a time that is kNever, or infinitely long ago.
Time later(Time at, Duration by);

/// Where a group is in the course of turns.
enum class TurnPlace : std::uint8_t { kOut, kComing, kIn, kLeaving, kPausedByOthers };

TurnPlace place_of(const StageMemory& memory, const GroupView& group, const GroupMemory& m);

/// One that takes turns.
struct StageMember {
  const GroupView* group = nullptr;
  const GroupMemory* memory = nullptr;
  TurnPlace place = TurnPlace::kOut;
  TurnTaker terms;
  DeviceShares runs;    // what it has while it runs
  DeviceShares comes;   // what it needs to come in
  DeviceShares leaves;  // what remains when it has left
  DeviceShares is_out;  // what is there while it is out

  bool starts() const { return group->first_turn == FirstTurn::kDue; }
  bool present() const { return place != TurnPlace::kOut && place != TurnPlace::kPausedByOthers; }
  bool has_remainder() const {
    return place == TurnPlace::kOut &&
           std::any_of(is_out.begin(), is_out.end(),
                       [](const DeviceShare& each) { return each.user; });
  }
  /// Returns what it has on the devices now.
  const DeviceShares& there() const { return present() ? runs : is_out; }
};

using StageMembers = std::vector<const StageMember*>;

bool has(const StageMembers& members, const StageMember* member);
/// "group 'a'", "groups 'a', 'b'".
std::string names(const StageMembers& members);

/// All that take turns, as they are now. The view and the memory outlive it.
class StageSnapshot {
 public:
  StageSnapshot(const StageView& view, const StageMemory& memory, Time now);

  const std::vector<StageMember>& all() const { return all_; }

  /// If nothing happens; kNever.
  Time idle_from(const StageMember& m) const;
  bool idle(const StageMember& m) const { return idle_from(m) <= now_; }

  /// If nothing happens; kNever.
  Time leaves_from(const StageMember& m) const;
  bool may_leave(const StageMember& m) const { return leaves_from(m) <= now_; }

  bool waits(const StageMember& m) const { return m.place == TurnPlace::kOut && m.memory->wants; }
  /// From when on it is in the queue. REQUIRES: it waits.
  Time asked(const StageMember& m) const;
  bool anybody_waits() const { return waiting_owner_.has_value(); }
  /// A group of another owner does.
  bool foreign_waits(const GroupView& group) const {
    return several_owners_wait_ || (waiting_owner_ && *waiting_owner_ != group.owner);
  }
  /// When its first turn ends if nothing happens; kNever. REQUIRES: it has begun.
  Time first_turn_ends(const GroupView& group, const GroupMemory& m) const;

  StageLoad load() const;
  /// All other groups have left, with all that can leave.
  StageLoad load_without_others(const StageMember& m) const;
  bool could_come_in(const StageMember& m) const {
    return load_without_others(m).has_space_for(m.comes);
  }
  /// Why, and who has the memory. REQUIRES: !could_come_in(m).
  Hindrance does_not_fit(const StageMember& m) const;

  /// All that ask now, the first one first.
  StageMembers queue() const;
  /// Whose first one has a place among those with longest waits that hold against `of`'s groups.
  bool promised_first(const StageMember& m, std::uint64_t of) const;

  static constexpr std::uint64_t kEverybody = 0;

 private:
  /// By the wishes that hold: of everybody only those that operators have set.
  StageMembers in_order(const StageMembers& asking, std::uint64_t of) const;

  const StageView& view_;
  const TurnRules& rules_;
  const StageMemory& memory_;
  const Time now_;
  std::vector<StageMember> all_;
  StageLoad least_;  // if all had left
  std::optional<std::uint64_t> waiting_owner_;
  bool several_owners_wait_ = false;
};

/// While there are no ranks, somebody is about to make them.
bool at_work(const GroupView& group);

}  // namespace amem
