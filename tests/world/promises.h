// What must hold of a node and its ranks at any time, whatever happens, as it is seen from outside.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>

#include "amem/v1/broker.pb.h"
#include "tests/world/rank_process.h"

namespace amem::world {

using Ranks = std::deque<RankProcess>;
using GroupInfos = std::map<std::string, v1::GroupInfo>;

/// What does not hold; empty: everything does. `all`: nothing may be paused. `known`: whether the
/// broker may know of this rank.
std::string broken_promise(const Ranks& ranks, const GroupInfos& groups, bool all,
                           const std::function<bool(const RankProcess&)>& known);
/// Before the driver takes this step.
std::string broken_by_step(const Ranks& ranks, const Checkpoints::Step& step);
/// Nothing is under way in any group.
bool at_rest(const GroupInfos& groups);

}  // namespace amem::world
