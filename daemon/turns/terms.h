// What a stage is told before its groups take turns: the rules, the devices, and the terms of each
// group. Plain values, and whether they make sense.
//
// A stage is a set of devices and the groups that take turns on them. Groups have names here, and
// devices have UUIDs, so a stage may reach over several nodes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
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
  bool starts_alone = true;  // the first turn of a group that begins is of all devices
  Duration start_idle = std::chrono::seconds(30);  // in its first turn: idle only after this
};

struct StageDevice {
  DeviceUuid device;
  std::uint64_t capacity = 0;  // bytes
  std::uint64_t margin = 0;    // of these, stay free
  std::uint64_t taken = 0;     // others have at present: nobody comes in there

  std::uint64_t usable() const { return capacity - margin; }
  std::uint64_t available() const { return usable() - std::min(usable(), taken); }
};

/// Bytes on each device. One that is missing needs none.
using TurnNeeds = std::map<DeviceUuid, std::uint64_t>;
/// In place of bytes: no other group may run.
inline constexpr std::uint64_t kWholeDevice = ~std::uint64_t{0};
/// `needs` less `part`. A device on which nothing is left is not in the result.
TurnNeeds without(TurnNeeds needs, const TurnNeeds& part);

struct TurnTerms {
  std::string group;
  TurnNeeds needs;            // while it runs
  std::uint32_t weight = 1;   // slice: of its turns
  std::int32_t priority = 0;  // lease, demand: more comes first. Without effect with a longest wait
  std::optional<Duration> min_residency = {};  // stays for so long; nothing: residency() says
  Duration longest_wait{};                     // from asking to running again; 0: none
  Duration cost_out{};                         // the longest that has been measured
  Duration cost_in{};                          // the same
  bool starts = false;  // its first turn has not ended. It may not leave before its turn's limit
  // Of needs, what may leave without the rest, in this order; together no more than needs.
  std::vector<TurnNeeds> parts = {};

  /// Without a setting, four times what it costs to leave and to return: two groups that take
  /// turns all the time spend a fifth of it on switches.
  Duration residency() const { return min_residency.value_or(4 * (cost_out + cost_in)); }
};

inline constexpr Duration kLongestTurnTime = std::chrono::hours(24);  // of any duration above
inline constexpr std::uint32_t kMaxTurnWeight = 100;
inline constexpr std::int32_t kMaxTurnPriority = 100;
inline constexpr std::size_t kMaxGroupsOfStage = 256;

/// kInvalidArgument: the text says what is wrong, and what would be right.
Status check_stage(const TurnRules& rules, const std::vector<StageDevice>& devices);

/// kInvalidArgument, or kOutOfRange: the group is too large for the stage, even alone.
/// REQUIRES: a stage that check_stage() accepts.
Status check_terms(const TurnRules& rules, const std::vector<StageDevice>& devices,
                   const TurnTerms& terms);
Status check_needs(const std::vector<StageDevice>& devices, const std::string& group,
                   const TurnNeeds& needs);
Status check_costs(const std::string& group, Duration out, Duration in);

/// After so long of a turn a group has to leave if another one waits; nothing: it need not.
std::optional<Duration> turn_limit(const TurnRules& rules, const TurnTerms& terms);

/// All of these devices.
TurnNeeds whole(const std::vector<StageDevice>& devices);

/// The bytes of some groups on the devices of a stage.
class TurnLoad {
 public:
  /// `devices` outlive this object.
  explicit TurnLoad(const std::vector<StageDevice>& devices)
      : devices_(&devices), used_(devices.size()) {}

  void add(const TurnNeeds& needs);
  void remove(const TurnNeeds& needs);  // REQUIRES: they have been added
  bool has_space_for(const TurnNeeds& needs) const;
  /// What a group that needs a whole device really has there does not count.
  bool within_limits() const;
  /// Within limits, and who needs a whole device is alone.
  bool fits() const;

 private:
  const std::vector<StageDevice>* devices_;
  std::vector<std::uint64_t> used_;
  std::size_t groups_ = 0;
  std::size_t alone_ = 0;  // of these, the ones that need a whole device
};

}  // namespace amem
