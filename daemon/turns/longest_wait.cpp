#include "daemon/turns/longest_wait.h"

#include <algorithm>
#include <utility>

#include "daemon/base/units.h"

namespace amem {
namespace {

using Terms = std::vector<TurnTerms>;

bool all_fit(const std::vector<StageDevice>& devices, const Terms& terms) {
  TurnLoad load(devices);
  for (const TurnTerms& each : terms) {
    if (!load.has_space_for(each.needs)) return false;
    load.add(each.needs);
  }
  return true;
}

bool any_two_fit(const std::vector<StageDevice>& devices, const Terms& terms) {
  for (std::size_t i = 0; i < terms.size(); ++i) {
    TurnLoad load(devices);
    load.add(terms[i].needs);
    for (std::size_t k = i + 1; k < terms.size(); ++k)
      if (load.has_space_for(terms[k].needs)) return true;
  }
  return false;
}

/// At least the costs of the groups that cost most and run at once: on each device as much of them
/// as there is space, as if groups could be divided.
Duration worst_of_a_set(const std::vector<StageDevice>& devices, const Terms& terms,
                        Duration TurnTerms::*cost) {
  Duration worst = Duration::max();
  for (const StageDevice& device : devices) {
    std::vector<std::pair<double, double>> each;  // bytes, cost
    for (const TurnTerms& group : terms) {
      const auto it = group.needs.find(device.device);
      const std::uint64_t bytes = it == group.needs.end() ? 0 : it->second;
      each.emplace_back(static_cast<double>(std::min(bytes, device.usable())),
                        static_cast<double>((group.*cost).count()));
    }
    std::sort(each.begin(), each.end(),
              [](const auto& a, const auto& b) { return a.second * b.first > b.second * a.first; });
    double space = static_cast<double>(device.usable());
    double sum = 0;
    for (const auto& [bytes, costs] : each) {
      if (bytes > space) {
        sum += costs * space / bytes;
        break;
      }
      space -= bytes;
      sum += costs;
    }
    worst = std::min(worst, Duration(static_cast<Duration::rep>(sum) + 1));
  }
  return worst;
}

Duration worst_of_one(const Terms& terms, Duration TurnTerms::*cost) {
  Duration worst{};
  for (const TurnTerms& each : terms) worst = std::max(worst, each.*cost);
  return worst;
}

std::string advice(const TurnRules& rules, const TurnTerms& terms, const WorstWait& worst) {
  std::string text;
  if (!worst.longest.empty())
    text = rules.policy == TurnPolicy::kSlice
               ? "shorten slice or the weight of group '" + worst.longest + "'"
               : "shorten max_hold or min_residency of group '" + worst.longest + "'";
  const bool may_be_longer = worst.total && *worst.total <= kLongestTurnTime;
  if (may_be_longer) {
    // Rounded up, so that it suffices as it is written.
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(*worst.total);
    text += std::string(text.empty() ? "" : ", or ") + "set longest_wait of group '" + terms.group +
            "' to at least " + format_duration(seconds);
  }
  return text.empty() ? "remove longest_wait of group '" + terms.group + "'" : text;
}

}  // namespace

WorstWait worst_wait(const TurnRules& rules, const std::vector<StageDevice>& devices,
                     const Terms& terms, std::size_t index) {
  WorstWait worst;
  // What is left of a group that is out may have to leave beside one that runs.
  const bool parts = std::any_of(terms.begin(), terms.end(),
                                 [](const TurnTerms& each) { return !each.parts.empty(); });
  const bool several = parts || any_two_fit(devices, terms);
  const Duration a_switch = several ? worst_of_a_set(devices, terms, &TurnTerms::cost_out) +
                                          worst_of_a_set(devices, terms, &TurnTerms::cost_in)
                                    : worst_of_one(terms, &TurnTerms::cost_out) +
                                          worst_of_one(terms, &TurnTerms::cost_in);
  // Others that fit may begin to switch just before this group, or one before it, could.
  const Duration a_step = several ? 2 * a_switch : a_switch;
  worst.in_switches = a_switch + a_step;
  const Duration grace = rules.policy == TurnPolicy::kDemand ? rules.grace : Duration{};

  // All with a longest wait (with slices: all) come first once, one of the others, and another of
  // these has its turn already.
  std::vector<std::pair<Duration, const TurnTerms*>> others;
  Duration longest{};
  bool unlimited = false;
  if (!all_fit(devices, terms)) {
    for (std::size_t i = 0; i < terms.size(); ++i) {
      if (i == index) continue;
      const std::optional<Duration> limit = turn_limit(rules, terms[i]);
      if (!limit) {
        if (!std::exchange(unlimited, true)) worst.longest = terms[i].group;
        continue;
      }
      if (!unlimited && *limit > longest) {
        longest = *limit;
        worst.longest = terms[i].group;
      }
      if (rules.policy == TurnPolicy::kSlice || terms[i].longest_wait > Duration{}) {
        worst.in_turns += *limit;
        worst.in_switches += a_step;
      } else {
        others.emplace_back(*limit, &terms[i]);
      }
    }
  }
  std::sort(others.begin(), others.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t i = 0; i < others.size() && i < 2; ++i) {
    worst.in_turns += others[i].first;
    worst.in_switches += a_step;
  }
  if (!unlimited) worst.total = grace + worst.in_switches + worst.in_turns;
  return worst;
}

Status check_longest_waits(const TurnRules& rules, const std::vector<StageDevice>& devices,
                           const Terms& terms) {
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const TurnTerms& each = terms[i];
    if (each.longest_wait == Duration{}) continue;
    const WorstWait worst = worst_wait(rules, devices, terms, i);
    if (worst.total && *worst.total <= each.longest_wait) continue;
    const std::string begins = "group '" + each.group + "' has a longest wait of " +
                               format_duration(each.longest_wait) + ", and ";
    if (!worst.total)
      return {Code::kFailedPrecondition,
              begins + "group '" + worst.longest +
                  "' may keep its turn without limit: set max_hold, or " +
                  "remove longest_wait of group '" + each.group + "'"};
    return {Code::kFailedPrecondition,
            begins + "may have to wait for " + format_duration(*worst.total) + " (" +
                format_duration(worst.in_turns) + " of turns of other groups, " +
                format_duration(worst.in_switches) +
                " of switches): " + advice(rules, each, worst)};
  }
  return {};
}

}  // namespace amem
