#include "daemon/turns/longest_wait.h"

#include <algorithm>
#include <string>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/turns/load.h"

namespace amem {
namespace {

using Terms = std::vector<TurnTaker>;

bool all_fit(const StageView& view, const std::vector<DeviceShares>& shares) {
  StageLoad load(view);
  for (const DeviceShares& each : shares) {
    if (!load.has_space_for(each)) return false;
    load.add(each);
  }
  return true;
}

bool any_two_fit(const StageView& view, const std::vector<DeviceShares>& shares) {
  for (std::size_t i = 0; i < shares.size(); ++i) {
    StageLoad load(view);
    load.add(shares[i]);
    for (std::size_t k = i + 1; k < shares.size(); ++k)
      if (load.has_space_for(shares[k])) return true;
  }
  return false;
}

/// At least the costs of the groups that cost most and run at once: on each device as much of them
/// as there is space, as if groups could be divided.
Duration worst_of_a_set(const StageView& view, const Terms& terms,
                        const std::vector<DeviceShares>& shares, Duration TurnTaker::*cost) {
  Duration worst = Duration::max();
  for (std::size_t device = 0; device < view.devices.size(); ++device) {
    const std::uint64_t usable = view.devices[device].usable();
    std::vector<std::pair<double, double>> each;  // bytes, cost
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const DeviceShare& share = shares[i][device];
      const std::uint64_t bytes = share.alone ? usable : std::min(share.bytes, usable);
      each.emplace_back(static_cast<double>(bytes), static_cast<double>((terms[i].*cost).count()));
    }
    std::sort(each.begin(), each.end(),
              [](const auto& a, const auto& b) { return a.second * b.first > b.second * a.first; });
    double space = static_cast<double>(usable);
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

Duration worst_of_one(const Terms& terms, Duration TurnTaker::*cost) {
  Duration worst{};
  for (const TurnTaker& each : terms) worst = std::max(worst, each.*cost);
  return worst;
}

/// What is the same for all whose longest waits hold against the same groups.
struct Audience {
  struct Limits {
    std::optional<Duration> weighted;  // with the weight that the group has
    std::optional<Duration> plain;     // without
  };
  Terms terms;
  std::vector<Limits> limits;  // by terms
  bool all_fit = false;
  bool several = false;
  Duration a_switch{};
};

Audience audience_of(const StageView& view, Terms terms) {
  Audience audience;
  std::vector<DeviceShares> shares;
  for (const TurnTaker& each : terms) {
    shares.push_back(running(*each.group));
    const std::uint32_t weight = each.group->wishes.weight;
    audience.limits.push_back({turn_limit(view.rules, weight, each.residency),
                               turn_limit(view.rules, 1, each.residency)});
  }
  // What is left of a group that is out may have to leave beside one that runs.
  audience.several = std::any_of(terms.begin(), terms.end(),
                                 [](const TurnTaker& each) { return !each.group->parts.empty(); });
  audience.several = audience.several || any_two_fit(view, shares);
  audience.a_switch =
      audience.several
          ? worst_of_a_set(view, terms, shares, &TurnTaker::cost_out) +
                worst_of_a_set(view, terms, shares, &TurnTaker::cost_in)
          : worst_of_one(terms, &TurnTaker::cost_out) + worst_of_one(terms, &TurnTaker::cost_in);
  audience.all_fit = all_fit(view, shares);
  audience.terms = std::move(terms);
  return audience;
}

bool counts_against(const GroupView& group, const GroupView& other) {
  return group.wishes.by_operator || group.owner == other.owner;
}

/// The groups against which a longest wait of this group holds; the group is among them.
Terms against(const Terms& terms, const GroupView& group) {
  Terms found;
  for (const TurnTaker& each : terms)
    if (counts_against(group, *each.group)) found.push_back(each);
  return found;
}

WorstWait worst_wait(const TurnRules& rules, const Audience& audience, const GroupView& group) {
  WorstWait worst;
  // Others that fit may begin to switch just before this group, or one before it, could.
  const Duration per_other = audience.several ? 2 * audience.a_switch : audience.a_switch;
  worst.in_switches = audience.a_switch + per_other;
  const Duration grace = rules.policy == TurnPolicy::kDemand ? rules.grace : Duration{};

  // All with a longest wait (with slices: all) come first once, one of the others, and another of
  // these has its turn already.
  Duration first{};  // the longest two of the others
  Duration second{};
  std::size_t others = 0;
  Duration longest{};
  bool unlimited = false;
  if (!audience.all_fit) {
    for (std::size_t i = 0; i < audience.terms.size(); ++i) {
      const GroupView& other = *audience.terms[i].group;
      if (&other == &group) continue;
      const bool weighs = counts_against(other, group);
      const std::optional<Duration>& limit =
          weighs ? audience.limits[i].weighted : audience.limits[i].plain;
      if (!limit) {
        if (!std::exchange(unlimited, true)) worst.longest = &other;
        continue;
      }
      if (!unlimited && *limit > longest) {
        longest = *limit;
        worst.longest = &other;
      }
      if (rules.policy == TurnPolicy::kSlice ||
          (other.wishes.longest_wait > Duration{} && weighs)) {
        worst.in_turns += *limit;
        worst.in_switches += per_other;
        continue;
      }
      ++others;
      second = std::max(second, std::min(first, *limit));
      first = std::max(first, *limit);
    }
  }
  worst.in_turns += first + second;
  worst.in_switches += static_cast<Duration::rep>(std::min<std::size_t>(others, 2)) * per_other;
  if (!unlimited) worst.total = grace + worst.in_switches + worst.in_turns;
  return worst;
}

std::string advice(const TurnRules& rules, const GroupView& group, const WorstWait& worst) {
  std::string text;
  if (worst.longest != nullptr)
    text = rules.policy == TurnPolicy::kSlice
               ? "shorten slice or the weight of group '" + worst.longest->name + "'"
               : "shorten max_hold for group '" + worst.longest->name + "'";
  const bool may_be_longer = worst.total && *worst.total <= kLongestTurnTime;
  if (may_be_longer) {
    // Rounded up, so that it suffices as it is written.
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(*worst.total);
    text += std::string(text.empty() ? "" : ", or ") + "set longest_wait of group '" + group.name +
            "' to at least " + format_duration(seconds);
  }
  return text.empty() ? "remove longest_wait of group '" + group.name + "'" : text;
}

Status check(const TurnRules& rules, const Audience& audience, const GroupView& group) {
  const WorstWait worst = worst_wait(rules, audience, group);
  if (worst.total && *worst.total <= group.wishes.longest_wait) return {};
  const std::string begins = "group '" + group.name + "' has a longest wait of " +
                             format_duration(group.wishes.longest_wait) + ", and ";
  if (!worst.total)
    return {Code::kFailedPrecondition, begins + "group '" + worst.longest->name +
                                           "' may keep its turn without limit: set max_hold, or " +
                                           "remove longest_wait of group '" + group.name + "'"};
  return {Code::kFailedPrecondition,
          begins + "may have to wait for " + format_duration(*worst.total) + " (" +
              format_duration(worst.in_turns) + " of turns of other groups, " +
              format_duration(worst.in_switches) + " of switches): " + advice(rules, group, worst)};
}

}  // namespace

TurnTaker terms_of(const GroupView& group, const Costs& out, const Costs& in) {
  TurnTaker terms{&group, out.worst(), in.worst(), {}};
  terms.residency = group.min_residency.value_or(4 * (terms.cost_out + terms.cost_in));
  return terms;
}

std::optional<Duration> turn_limit(const TurnRules& rules, std::uint32_t weight,
                                   Duration residency) {
  if (rules.policy == TurnPolicy::kSlice) return std::max(residency, rules.slice * weight);
  if (rules.max_hold == Duration{}) return std::nullopt;
  return std::max(residency, rules.max_hold);
}

WorstWait worst_wait(const StageView& view, const std::vector<TurnTaker>& terms,
                     std::size_t index) {
  const GroupView& group = *terms[index].group;
  return worst_wait(view.rules, audience_of(view, against(terms, group)), group);
}

Status check_longest_waits(const StageView& view, const std::vector<TurnTaker>& terms,
                           const GroupView* other, GroupId* whose) {
  constexpr std::uint64_t kEverybody = 0;
  std::map<std::uint64_t, Audience> audiences;  // by owner
  for (const TurnTaker& each : terms) {
    const GroupView& group = *each.group;
    if (group.wishes.longest_wait == Duration{}) continue;
    if (other != nullptr && !counts_against(group, *other)) continue;
    const std::uint64_t key = group.wishes.by_operator ? kEverybody : group.owner;
    auto audience = audiences.find(key);
    if (audience == audiences.end())
      audience = audiences.emplace(key, audience_of(view, against(terms, group))).first;
    Status status = check(view.rules, audience->second, group);
    if (status.ok()) continue;
    if (whose != nullptr) *whose = group.id;
    return status;
  }
  return {};
}

}  // namespace amem
