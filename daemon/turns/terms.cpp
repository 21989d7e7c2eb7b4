#include "daemon/turns/terms.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "daemon/base/units.h"

namespace amem {
namespace {

std::uint64_t bytes_on(const TurnNeeds& needs, const DeviceUuid& device) {
  const auto it = needs.find(device);
  return it == needs.end() ? 0 : it->second;
}

bool needs_whole(const TurnNeeds& needs) {
  return std::any_of(needs.begin(), needs.end(),
                     [](const auto& each) { return each.second == kWholeDevice; });
}

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

TurnNeeds without(TurnNeeds needs, const TurnNeeds& part) {
  for (const auto& [device, bytes] : part)
    if (const auto it = needs.find(device); it != needs.end())
      it->second -= std::min(it->second, bytes);
  std::erase_if(needs, [](const auto& each) { return each.second == 0; });
  return needs;
}

Status check_stage(const TurnRules& rules, const std::vector<StageDevice>& devices) {
  constexpr Duration kShortest = std::chrono::milliseconds(1);
  for (const auto& [name, value, at_least] :
       {std::tuple("grace", rules.grace, Duration{}), std::tuple("idle", rules.idle, Duration{}),
        std::tuple("max_hold", rules.max_hold, Duration{}),
        std::tuple("slice", rules.slice, kShortest), std::tuple("ageing", rules.ageing, kShortest),
        std::tuple("start_idle", rules.start_idle, Duration{}),
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

Status check_needs(const std::vector<StageDevice>& devices, const std::string& group,
                   const TurnNeeds& needs) {
  for (const auto& [device, bytes] : needs) {
    const auto it =
        std::find_if(devices.begin(), devices.end(),
                     [&wanted = device](const StageDevice& each) { return each.device == wanted; });
    if (it == devices.end())
      return {Code::kInvalidArgument, "group '" + group + "' uses GPU " + to_string(device) +
                                          ", which is not in the stage: add it to the stage"};
    if (bytes != kWholeDevice && bytes > it->usable())
      return {Code::kOutOfRange, "group '" + group + "' needs " + format_size(bytes) + " on GPU " +
                                     to_string(device) + ", and the stage has " +
                                     format_size(it->usable()) +
                                     " there: it cannot run there, even alone"};
  }
  return {};
}

Status check_costs(const std::string& group, Duration out, Duration in) {
  const std::string of = "group '" + group + "'";
  if (Status status = check_duration(of, "its cost of a pause", out); !status.ok()) return status;
  return check_duration(of, "its cost of a resume", in);
}

Status check_terms(const TurnRules& rules, const std::vector<StageDevice>& devices,
                   const TurnTerms& terms) {
  if (terms.group.empty())
    return {Code::kInvalidArgument, "a group of the stage has no name: set AMEM_GROUP"};
  const std::string of = "group '" + terms.group + "'";
  if (terms.weight < 1 || terms.weight > kMaxTurnWeight)
    return {Code::kInvalidArgument, of + ": weight is " + std::to_string(terms.weight) +
                                        ": set it to a number from 1 to " +
                                        std::to_string(kMaxTurnWeight)};
  if (terms.priority < -kMaxTurnPriority || terms.priority > kMaxTurnPriority)
    return {Code::kInvalidArgument,
            of + ": priority is " + std::to_string(terms.priority) + ": set it to a number from -" +
                std::to_string(kMaxTurnPriority) + " to " + std::to_string(kMaxTurnPriority)};
  if (Status status = check_costs(terms.group, terms.cost_out, terms.cost_in); !status.ok())
    return status;
  if (terms.min_residency) {
    if (Status status = check_duration(of, "min_residency", *terms.min_residency); !status.ok())
      return status;
  }
  if (Status status = check_duration(of, "longest_wait", terms.longest_wait); !status.ok())
    return status;
  if (rules.policy == TurnPolicy::kSlice && rules.slice * terms.weight < terms.residency())
    return {Code::kInvalidArgument,
            of + ": its slice of " + format_duration(rules.slice * terms.weight) +
                " is shorter than its minimum residency of " + format_duration(terms.residency()) +
                ": set a slice of at least " + format_duration(terms.residency()) +
                " or a shorter min_residency"};
  return check_needs(devices, terms.group, terms.needs);
}

std::optional<Duration> turn_limit(const TurnRules& rules, const TurnTerms& terms) {
  if (rules.policy == TurnPolicy::kSlice)
    return std::max(terms.residency(), rules.slice * terms.weight);
  if (rules.max_hold == Duration{}) return std::nullopt;
  return std::max(terms.residency(), rules.max_hold);
}

TurnNeeds whole(const std::vector<StageDevice>& devices) {
  TurnNeeds needs;
  for (const StageDevice& each : devices) needs[each.device] = kWholeDevice;
  return needs;
}

void TurnLoad::add(const TurnNeeds& needs) {
  ++groups_;
  if (needs_whole(needs)) {
    ++alone_;
    return;
  }
  for (std::size_t i = 0; i < used_.size(); ++i) used_[i] += bytes_on(needs, (*devices_)[i].device);
}

void TurnLoad::remove(const TurnNeeds& needs) {
  --groups_;
  if (needs_whole(needs)) {
    --alone_;
    return;
  }
  for (std::size_t i = 0; i < used_.size(); ++i) used_[i] -= bytes_on(needs, (*devices_)[i].device);
}

bool TurnLoad::has_space_for(const TurnNeeds& needs) const {
  if (alone_ > 0) return false;
  // What processes that take no turns have there stays.
  if (needs_whole(needs)) return groups_ == 0;
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const StageDevice& device = (*devices_)[i];
    const std::uint64_t bytes = bytes_on(needs, device.device);
    // What is over its limit on a device has no say on the others.
    if (bytes > 0 && (used_[i] > device.available() || bytes > device.available() - used_[i]))
      return false;
  }
  return true;
}

bool TurnLoad::within_limits() const {
  for (std::size_t i = 0; i < used_.size(); ++i)
    if (used_[i] > (*devices_)[i].usable()) return false;
  return true;
}

bool TurnLoad::fits() const { return within_limits() && (alone_ == 0 || groups_ == 1); }

}  // namespace amem
