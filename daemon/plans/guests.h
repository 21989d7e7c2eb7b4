// Guests: who has opened memory of another group, worked out from the allocation table.
//
// Pure functions over the table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/memory/allocations.h"
#include "daemon/plans/plan.h"

namespace amem {

/// What one rank has opened of one group's memory of one tag.
struct GuestUse {
  GroupId owner = kNoGroup;
  Guest guest;
  std::string tag;
  std::uint64_t count = 0;  // allocations
  std::uint64_t bytes = 0;
};

/// By guest and tag, what ranks of other groups have opened of this group's and is `chosen`.
std::vector<GuestUse> guests_of(
    const Allocations& table, GroupId owner,
    const Allocations::Filter& chosen = [](const Allocation&) { return true; });
/// By owner and tag, what this rank has opened of other groups'.
std::vector<GuestUse> opened_by(const Allocations& table, RankId rank);

/// Adds to the plan of a resume: these ranks map again what they have opened and let go of.
void add_opened(const Allocations& table, const std::vector<RankId>& ranks, Plan& plan);

}  // namespace amem
