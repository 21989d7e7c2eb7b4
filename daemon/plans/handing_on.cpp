#include "daemon/plans/handing_on.h"

namespace amem {
namespace {

KindCounts count(const Allocations& table, const std::vector<GroupId>& groups,
                 const Allocations::Filter& counts) {
  KindCounts kinds;
  for (const GroupId group : groups)
    for (const Allocation* a : table.of_group(group))
      if (may_change_hands(*a) && counts(*a)) ++kinds[kind_of(*a)];
  return kinds;
}

}  // namespace

KindCounts lacking(const Allocations& table, const std::vector<GroupId>& groups) {
  return count(table, groups, [](const Allocation& a) { return a.paused && !a.resident(); });
}

KindCounts to_come(const Allocations& table, GroupId group, const Allocations::Filter& leaves) {
  return count(table, {group},
               [&](const Allocation& a) { return a.sharers_known && a.can_leave() && leaves(a); });
}

}  // namespace amem
