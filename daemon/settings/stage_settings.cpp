#include "daemon/settings/stage_settings.h"

#include <algorithm>
#include <charconv>

#include "daemon/base/units.h"
#include "daemon/base/unix_listener.h"

namespace amem {
namespace {

/// Calls `add` with each word of a list.
template <class Add>
Status each_word(std::string_view value, Add add) {
  while (!value.empty()) {
    const std::size_t comma = value.find(',');
    std::string_view one = value.substr(0, comma);
    value.remove_prefix(comma == std::string_view::npos ? value.size() : comma + 1);
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    if (one.empty()) continue;
    if (Status status = add(one); !status.ok()) return status;
  }
  return {};
}

Status set_devices(StageSettings& stage, std::string_view value) {
  stage.devices.clear();
  const Status status = each_word(value, [&](std::string_view one) -> Status {
    const bool known = std::any_of(stage.devices.begin(), stage.devices.end(),
                                   [&](const std::string& each) { return each == one; });
    if (known) return {Code::kInvalidArgument, "GPU " + std::string(one) + " is named twice"};
    stage.devices.emplace_back(one);
    return {};
  });
  if (status.ok() && stage.devices.empty())
    return {Code::kInvalidArgument, "name at least one GPU, by its number or UUID: \"0,1\""};
  return status;
}
std::string get_devices(const StageSettings& stage) {
  std::string text;
  for (const std::string& each : stage.devices) text += (text.empty() ? "" : ",") + each;
  return text;
}

Status set_policy(StageSettings& stage, std::string_view value) {
  for (const TurnPolicy policy : {TurnPolicy::kLease, TurnPolicy::kDemand, TurnPolicy::kSlice}) {
    if (value != to_string(policy)) continue;
    stage.rules.policy = policy;
    return {};
  }
  return {Code::kInvalidArgument,
          "\"" + std::string(value) + "\" is not one of lease demand slice"};
}
std::string get_policy(const StageSettings& stage) {
  return std::string(to_string(stage.rules.policy));
}

Status set_start(StageSettings& stage, std::string_view value) {
  if (value != "alone" && value != "beside")
    return {Code::kInvalidArgument, "\"" + std::string(value) + "\" is not one of alone beside"};
  stage.rules.starts_alone = value == "alone";
  return {};
}

template <auto Member, auto Find>
Status set_ids(StageSettings& stage, std::string_view value) {
  auto& ids = stage.*Member;
  ids.clear();
  return each_word(value, [&](std::string_view one) {
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(one.begin(), one.end(), number);
    if (error == std::errc() && end == one.end()) {
      ids.push_back(number);
      return Status();
    }
    const auto id = Find(std::string(one));
    if (id.ok()) ids.push_back(id.value());
    return id.status();
  });
}
template <auto Member>
std::string get_ids(const StageSettings& stage) {
  std::string text;
  for (const auto id : stage.*Member) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

Status set_margin(StageSettings& stage, std::string_view value) {
  const Result<std::uint64_t> size = parse_size(value);
  if (size.ok()) stage.margin = size.value();
  return size.status();
}

template <Duration TurnRules::*Member>
Status set_time(StageSettings& stage, std::string_view value) {
  const Result<Duration> parsed = parse_duration(value);
  if (parsed.ok()) stage.rules.*Member = parsed.value();
  return parsed.status();
}
template <Duration TurnRules::*Member>
std::string get_time(const StageSettings& stage) {
  return format_duration(stage.rules.*Member);
}

Status set_residency(StageSettings& stage, std::string_view value) {
  stage.min_residency.reset();
  if (value == "auto") return {};
  const Result<Duration> parsed = parse_duration(value);
  if (parsed.ok()) stage.min_residency = parsed.value();
  return parsed.status();
}
std::string get_residency(const StageSettings& stage) {
  return stage.min_residency ? format_duration(*stage.min_residency) : "auto";
}

}  // namespace

const std::vector<StageKey>& stage_keys() {
  static const std::vector<StageKey> all = {
      {"devices", "its GPUs, by their numbers in amemd or by UUID", set_devices, get_devices},
      {"policy", "when a group gets its turn: lease, demand or slice", set_policy, get_policy},
      {"start", "how a group starts: alone on the GPUs, or beside the groups that run", set_start,
       [](const StageSettings& stage) {
         return std::string(stage.rules.starts_alone ? "alone" : "beside");
       }},
      {"start_idle", "a group that starts alone has started when it had no work for so long",
       set_time<&TurnRules::start_idle>, get_time<&TurnRules::start_idle>},
      {"users", "whose groups it takes, by names or uids, with groups; neither: everybody's",
       set_ids<&StageSettings::users, user_id>, get_ids<&StageSettings::users>},
      {"groups", "the same, by Unix groups of the users", set_ids<&StageSettings::groups, group_id>,
       get_ids<&StageSettings::groups>},
      {"margin", "memory that stays free on each of its GPUs", set_margin,
       [](const StageSettings& stage) { return exact_size(stage.margin); }},
      {"idle", "demand, slice: a group without work for so long may have to leave",
       set_time<&TurnRules::idle>, get_time<&TurnRules::idle>},
      {"max_hold", "lease, demand: a group may have to leave after so long; 0s: never",
       set_time<&TurnRules::max_hold>, get_time<&TurnRules::max_hold>},
      {"slice", "slice: the turn of a group of weight 1", set_time<&TurnRules::slice>,
       get_time<&TurnRules::slice>},
      {"start_limit", "it will be 10m. Remove it", set_time<&TurnRules::start_limit>,
       get_time<&TurnRules::start_limit>, true},
      {"start_limit_shared", "it will be 60s. Remove it", set_time<&TurnRules::start_limit_shared>,
       get_time<&TurnRules::start_limit_shared>, true},
      {"grace", "it will be 200ms. Remove it", set_time<&TurnRules::grace>,
       get_time<&TurnRules::grace>, true},
      {"ageing", "it will be 30s. Remove it", set_time<&TurnRules::ageing>,
       get_time<&TurnRules::ageing>, true},
      {"min_residency", "amemd chooses it by what the switches of the group cost. Remove it",
       set_residency, get_residency, true},
  };
  return all;
}

Status StageSettings::set(std::string_view key, std::string_view value) {
  for (const StageKey& each : stage_keys())
    if (each.key == key) return each.set(*this, value);
  std::string text = "a stage has no such setting. Its settings are";
  for (const StageKey& each : stage_keys())
    if (!each.retired) text += " " + std::string(each.key);
  return {Code::kNotFound, text};
}

}  // namespace amem
