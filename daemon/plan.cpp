#include "daemon/plan.h"

#include <algorithm>

namespace amem {
namespace {

void add_copies(const Allocation& allocation, std::vector<CopyRange>& copies) {
  if (allocation.saved.empty()) {
    copies.push_back({allocation.id, 0, allocation.size, kZeroSegment, 0});
    return;
  }
  std::uint64_t offset = 0;
  for (const Extent& extent : allocation.saved) {
    // Extents are whole chunks; the last may reach beyond the allocation.
    const std::uint64_t length = std::min(extent.length, allocation.size - offset);
    copies.push_back({allocation.id, offset, length, extent.segment, extent.offset});
    offset += length;
  }
}

/// A resume brings it back: it is on its device again, and not yet in the ranks' hands.
bool comes_back(const Allocation& a, const Selection& what) {
  return a.away && a.resident() && what.takes(a.tag);
}

}  // namespace

Status known_tags(const Allocations& table, GroupId group, const Selection& what) {
  for (const std::string& tag : what.tags) {
    if (table.any(group, [&](const Allocation& a) { return a.tag == tag; })) continue;
    std::set<std::string> there;
    for (const Allocation* a : table.of_group(group)) there.insert(a->tag);
    std::string text = "the group has no memory of tag '" + tag + "'; ";
    if (there.empty()) return {Code::kNotFound, text + "it has no memory at all"};
    return {Code::kNotFound, text + "it has " + to_string(Selection{there})};
  }
  return {};
}

std::vector<Allocation*> to_save(Allocations& table, GroupId group, const Selection& what,
                                 const Allocations::Filter& keeps) {
  return table.of_group(
      group, [&](const Allocation& a) { return what.takes(a.tag) && a.can_leave() && keeps(a); });
}

Plan plan_save(const Allocations& table, GroupId group) {
  Plan plan;
  for (const Allocation* a : table.of_group(group))
    if (a->resident() && !a->saved.empty()) add_copies(*a, plan[a->keeper()].copies);
  return plan;
}

Plan plan_load(const Allocations& table, GroupId group, const Selection& what,
               const std::vector<RankId>& ranks) {
  Plan plan;
  for (RankId rank : ranks) plan[rank];
  for (const Allocation* a : table.of_group(group)) {
    if (!comes_back(*a, what)) continue;
    const auto it = plan.find(a->keeper());
    if (it == plan.end() || a->pinned_by(a->keeper())) continue;
    it->second.maps.push_back(a);
    if (!a->stayed) add_copies(*a, it->second.copies);
  }
  return plan;
}

Loaders loaders(const Plan& load) {
  Loaders result;
  std::size_t count = 0;
  for (const auto& [rank, plan] : load) count += plan.maps.size();
  result.reserve(count);
  for (const auto& [rank, plan] : load)
    for (const Allocation* a : plan.maps) result.emplace(a->id, rank);
  return result;
}

Plan plan_peers(const Allocations& table, GroupId group, const Selection& what,
                const Loaders& loaders) {
  Plan plan;
  for (const Allocation* a : table.of_group(group)) {
    if (!comes_back(*a, what)) continue;
    const auto loader = loaders.find(a->id);
    for (RankId rank : a->holders) {
      const bool has_it = (loader != loaders.end() && loader->second == rank) || a->pinned_by(rank);
      if (!has_it) plan[rank].maps.push_back(a);
    }
  }
  return plan;
}

bool loads_for_others(const Allocations& table, GroupId group, const Loaders& loaders,
                      RankId rank) {
  for (const Allocation* a : table.of_group(group)) {
    const auto loader = loaders.find(a->id);
    if (loader == loaders.end() || loader->second != rank) continue;
    if (std::any_of(a->holders.begin(), a->holders.end(), [rank](RankId h) { return h != rank; }))
      return true;
  }
  return false;
}

}  // namespace amem
