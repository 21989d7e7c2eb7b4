// What an operator or an owner sets for turns: the rules of a stage, its devices, and the terms of
// a group. Plain values, and whether they make sense.
//
// A stage is a set of devices of this node and the groups that take turns on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/protocol.h"
#include "common/status.h"
#include "daemon/base/clock.h"

namespace amem {

enum class TurnPolicy : std::uint8_t {
  kLease,   // a group has its turn from when it asks for it until it yields
  kDemand,  // a group asks when a call of it has waited, and leaves when it is idle
  kSlice,   // rotation
};
std::string_view to_string(TurnPolicy policy);

struct TurnRules {
  TurnPolicy policy = TurnPolicy::kDemand;
  Duration grace = std::chrono::milliseconds(200);  // demand: a call waits so long, then it asks
  Duration idle = std::chrono::seconds(2);  // demand, slice: without work for so long is idle
  Duration max_hold{};  // lease, demand: others get their turn after so long; 0: never
  Duration slice = std::chrono::seconds(30);       // slice: one turn of weight 1
  Duration ageing = std::chrono::seconds(30);      // so much waiting is worth one more of priority
  Duration first_retry = std::chrono::seconds(1);  // after a failure; doubled by each further one
  Duration last_retry = std::chrono::seconds(60);  // and not longer than this
  bool starts_alone = true;  // a group's first turn is of all devices that it sees
  Duration start_idle = std::chrono::seconds(30);  // in its first turn: idle only after this
  // A first turn without a rank ends after so long: alone, or while another owner's group waits.
  Duration start_limit = std::chrono::minutes(10);
  Duration start_limit_shared = std::chrono::seconds(60);
};

struct StageDevice {
  DeviceUuid device;
  int ordinal = 0;             // for people
  std::uint64_t capacity = 0;  // bytes
  std::uint64_t margin = 0;    // of these, stay free

  std::uint64_t usable() const { return capacity - margin; }
};

/// What a group's owner or an operator has set for its turns.
struct TurnWishes {
  std::uint32_t weight = 1;                    // slice: of its turns
  std::int32_t priority = 0;                   // lease, demand: more comes first
  Duration longest_wait{};                     // from asking to running again; 0: none
  std::vector<std::string> leave_first = {};   // tags, as far as they suffice
  std::vector<std::string> return_order = {};  // tags that return before the rest
  bool by_operator = false;  // they hold against everybody's groups; else against the owner's
  friend bool operator==(const TurnWishes&, const TurnWishes&) = default;
};

inline constexpr Duration kLongestTurnTime = std::chrono::hours(24);  // of any duration above
inline constexpr std::uint32_t kMaxTurnWeight = 100;
inline constexpr std::int32_t kMaxTurnPriority = 100;
/// An owner may have as many as are free: one alone half of them.
inline constexpr std::size_t kMaxGroupsOfStage = 512;

/// kInvalidArgument: the text says what is wrong, and what would be right.
Status check_stage(const TurnRules& rules, const std::vector<StageDevice>& devices);

/// kInvalidArgument. `residency`: the shortest turn of the group.
Status check_wishes(const TurnRules& rules, const std::string& group, const TurnWishes& wishes,
                    Duration residency = {});

}  // namespace amem
