#include "daemon/turns/terms.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "daemon/base/units.h"

namespace amem {
namespace {

Status check_duration(const std::string& of, std::string_view name, Duration value,
                      Duration at_least = {}) {
  if (value >= at_least && value <= kLongestTurnTime) return {};
  const std::string is = value < Duration{} ? "negative" : format_duration(value);
  return {Code::kInvalidArgument, of + ": " + std::string(name) + " is " + is +
                                      ": set it to a duration from " + format_duration(at_least) +
                                      " to " + format_duration(kLongestTurnTime)};
}

}  // namespace

std::string_view to_string(TurnPolicy policy) {
  switch (policy) {
    case TurnPolicy::kLease:
      return "lease";
    case TurnPolicy::kDemand:
      return "demand";
    case TurnPolicy::kSlice:
      break;
  }
  return "slice";
}

Status check_stage(const TurnRules& rules, const std::vector<StageDevice>& devices) {
  constexpr Duration kShortest = std::chrono::milliseconds(1);
  for (const auto& [name, value, at_least] :
       {std::tuple("grace", rules.grace, Duration{}), std::tuple("idle", rules.idle, Duration{}),
        std::tuple("max_hold", rules.max_hold, Duration{}),
        std::tuple("slice", rules.slice, kShortest), std::tuple("ageing", rules.ageing, kShortest),
        std::tuple("start_idle", rules.start_idle, Duration{}),
        std::tuple("start_limit", rules.start_limit, kShortest),
        std::tuple("start_limit_shared", rules.start_limit_shared, kShortest),
        std::tuple("first_retry", rules.first_retry, kShortest),
        std::tuple("last_retry", rules.last_retry, rules.first_retry)})
    if (Status status = check_duration("the stage", name, value, at_least); !status.ok())
      return status;
  if (devices.empty()) return {Code::kInvalidArgument, "the stage has no GPU: name at least one"};
  std::set<DeviceUuid> seen;
  for (const StageDevice& each : devices) {
    if (!seen.insert(each.device).second)
      return {Code::kInvalidArgument, "the stage has GPU " + to_string(each.device) + " twice"};
    if (each.margin >= each.capacity)
      return {Code::kInvalidArgument, "the margin of " + format_size(each.margin) + " leaves " +
                                          "nothing of the " + format_size(each.capacity) +
                                          " of GPU " + to_string(each.device) +
                                          ": set a smaller margin"};
  }
  return {};
}

Status check_wishes(const TurnRules& rules, const std::string& group, const TurnWishes& wishes,
                    Duration residency) {
  const std::string of = "group '" + group + "'";
  if (wishes.weight < 1 || wishes.weight > kMaxTurnWeight)
    return {Code::kInvalidArgument, of + ": weight is " + std::to_string(wishes.weight) +
                                        ": set it to a number from 1 to " +
                                        std::to_string(kMaxTurnWeight)};
  if (wishes.priority < -kMaxTurnPriority || wishes.priority > kMaxTurnPriority)
    return {Code::kInvalidArgument, of + ": priority is " + std::to_string(wishes.priority) +
                                        ": set it to a number from -" +
                                        std::to_string(kMaxTurnPriority) + " to " +
                                        std::to_string(kMaxTurnPriority)};
  if (Status status = check_duration(of, "longest_wait", wishes.longest_wait); !status.ok())
    return status;
  if (rules.policy == TurnPolicy::kSlice && rules.slice * wishes.weight < residency)
    return {Code::kInvalidArgument,
            of + ": its slice of " + format_duration(rules.slice * wishes.weight) +
                " is shorter than its minimum residency of " + format_duration(residency) +
                ": set a slice of at least " + format_duration(residency)};
  return {};
}

}  // namespace amem
