#include "tests/turns/rivals.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace amem::turn_traces {

Time FarthestNextUse::leaves_from(std::size_t index, const Group& group) const {
  const TurnTerms& terms = trace_->groups[index];
  if (!group.runs) return kNever;
  Time from = group.came_in + terms.residency();
  if (!group.works) return std::max(from, group.worked + trace_->rules.idle);
  const Duration hold = trace_->rules.max_hold;
  return hold == Duration{} ? kNever : std::max(from, group.came_in + hold);
}

std::optional<TurnSwitch> FarthestNextUse::decide(const std::vector<Group>& groups, Time now) {
  std::vector<std::size_t> queue;
  std::vector<std::size_t> may_leave;
  TurnLoad load(trace_->devices);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].asked && *groups[i].asked <= now) queue.push_back(i);
    if (groups[i].runs) load.add(trace_->groups[i].needs);
    if (leaves_from(i, groups[i]) <= now) may_leave.push_back(i);
  }
  std::stable_sort(queue.begin(), queue.end(), [&](std::size_t a, std::size_t b) {
    return *groups[a].asked < *groups[b].asked;
  });
  std::stable_sort(may_leave.begin(), may_leave.end(), [&](std::size_t a, std::size_t b) {
    return groups[a].next_use > groups[b].next_use;
  });
  TurnSwitch next;
  for (const std::size_t i : queue) {
    const TurnNeeds& needs = trace_->groups[i].needs;
    TurnLoad left = load;
    std::vector<std::size_t> out;
    for (const std::size_t each : may_leave) {
      if (left.has_space_for(needs)) break;
      left.remove(trace_->groups[each].needs);
      out.push_back(each);
    }
    if (!left.has_space_for(needs)) break;
    for (std::size_t k = out.size(); k-- > 0;) {
      TurnLoad with = left;
      with.add(trace_->groups[out[k]].needs);
      if (!with.has_space_for(needs)) continue;
      left = with;
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(k));
    }
    load = left;
    load.add(needs);
    for (const std::size_t each : out) {
      next.out.push_back(trace_->groups[each].group);
      std::erase(may_leave, each);
    }
    next.in.push_back(trace_->groups[i].group);
  }
  if (next.in.empty()) return std::nullopt;
  next.number = ++switches_;
  return next;
}

Time FarthestNextUse::wakeup(const std::vector<Group>& groups, Time now) const {
  Time next = kNever;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].asked && *groups[i].asked > now) next = std::min(next, *groups[i].asked);
    const Time from = leaves_from(i, groups[i]);
    if (from > now) next = std::min(next, from);
  }
  return next;
}

std::optional<std::uint64_t> fewest_resumes(const Trace& trace,
                                            const std::vector<std::size_t>& order) {
  const std::size_t count = trace.groups.size();
  if (count > 6) return std::nullopt;

  const std::size_t sets = 1ULL << count;
  std::vector<bool> fits(sets);
  for (std::size_t set = 0; set < sets; ++set) {
    TurnLoad load(trace.devices);
    for (std::size_t i = 0; i < count; ++i)
      if ((set >> i & 1) != 0) load.add(trace.groups[i].needs);
    fits[set] = load.within_limits();
  }
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::uint64_t> fewest(sets, kNone);  // with this set resident
  fewest[0] = 0;
  for (const std::size_t group : order) {
    const std::size_t bit = 1ULL << group;
    std::vector<std::uint64_t> then(sets, kNone);
    for (std::size_t set = 0; set < sets; ++set) {
      if (fewest[set] == kNone) continue;
      if ((set & bit) != 0) {
        then[set] = std::min(then[set], fewest[set]);
        continue;
      }
      for (std::size_t stay = set;; stay = (stay - 1) & set) {
        if (fits[stay | bit]) then[stay | bit] = std::min(then[stay | bit], fewest[set] + 1);
        if (stay == 0) break;
      }
    }
    fewest = then;
  }
  return *std::min_element(fewest.begin(), fewest.end());
}

}  // namespace amem::turn_traces
