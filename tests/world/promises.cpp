#include "tests/world/promises.h"

#include <algorithm>
#include <map>

namespace amem::world {
namespace {

/// Memory that changes hands is nobody's in between.
std::string memory_in_two_places(const Ranks& ranks) {
  std::map<MemoryId, std::uint64_t> allocations;
  for (const RankProcess& rank : ranks)
    if (rank.lives())
      for (const auto& [id, memory] : rank.mapped())
        if (const auto [it, first] = allocations.try_emplace(memory, id);
            !first && it->second != id)
          return "each allocation has memory of its own, but allocation " + std::to_string(id) +
                 " of rank " + std::to_string(rank.number()) + " of group " + rank.group() +
                 " is also allocation " + std::to_string(it->second);
  return "";
}

}  // namespace

std::string broken_promise(const Ranks& ranks, const GroupInfos& groups, bool all,
                           const std::function<bool(const RankProcess&)>& known) {
  for (const RankProcess& rank : ranks) {
    if (!rank.wrong().empty()) return rank.wrong();
    if (rank.runs())
      if (const std::string wrong = rank.check(all); !wrong.empty()) return wrong;
    if (!rank.lives() || rank.is_free() || !known(rank)) continue;
    if (rank.runs()) return "no rank runs whose process is locked or checkpointed";
    const auto group = groups.find(rank.address());
    if (group != groups.end() && group->second.state() == v1::GROUP_STATE_RUNNING)
      return "no group runs while one of its processes is locked or checkpointed";
  }
  return memory_in_two_places(ranks);
}

std::string broken_by_step(const Ranks& ranks, const Checkpoints::Step& step) {
  if (step.action != CheckpointAction::kLock) return "";
  for (const RankProcess& rank : ranks)
    if (rank.lives() && rank.pid() == step.pid)
      if (std::string wrong = rank.may_be_locked(); !wrong.empty()) return wrong;
  return "";
}

bool at_rest(const GroupInfos& groups) {
  return std::all_of(groups.begin(), groups.end(), [](const auto& each) {
    const v1::GroupState state = each.second.state();
    return state == v1::GROUP_STATE_RUNNING || state == v1::GROUP_STATE_PAUSED;
  });
}

}  // namespace amem::world
