// Handing on: which memory of the groups that leave can take the place of new memory for the groups
// that arrive.
//
// Pure functions over the table.
#pragma once

#include <functional>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/memory/allocations.h"
#include "daemon/memory/spares.h"

namespace amem {

/// Memory that amemd makes for its ranks. What a rank makes itself, to bind it to a multicast
/// object, it must make again.
inline bool may_change_hands(const Allocation& a) { return a.maker == 0; }

/// Returns what a resume of these groups lacks: memory that is not on its device, and returns.
KindCounts lacking(const Allocations& table, const std::vector<GroupId>& groups);

/// Returns what may still come from a group that leaves, of what `leaves`.
KindCounts to_come(const Allocations& table, GroupId group, const Allocations::Filter& leaves);

}  // namespace amem
