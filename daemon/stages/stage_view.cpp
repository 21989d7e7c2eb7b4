#include "daemon/stages/stage_view.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace amem {
namespace {

/// With the policy for guests that pauses of stages have.
std::uint64_t leaves(const Node& node, const TagSums& sums) {
  return node.guests == GuestPolicy::kPin ? sums.can_leave : sums.may_leave;
}

std::optional<std::size_t> index_of(const StageRules& stage, const DeviceUuid& device) {
  for (std::size_t i = 0; i < stage.devices.size(); ++i)
    if (stage.devices[i].device == device) return i;
  return std::nullopt;
}

/// Returns whether its ranks' processes see the device, or its first process will. True if that is
/// not known.
bool sees(const Node& node, const GroupEntry& group, const DeviceUuid& device) {
  if (group.machine.members().empty())
    return group.starts_on.empty() || group.starts_on.contains(device);
  const std::vector<RankId> ranks = group.machine.members().ids();
  return std::any_of(ranks.begin(), ranks.end(), [&](RankId id) {
    const auto rank = node.ranks.find(id);
    if (rank == node.ranks.end()) return false;
    const VisibleDevices& visible = rank->second.devices;
    return visible.empty() || std::find(visible.begin(), visible.end(), device) != visible.end();
  });
}

}  // namespace

Presence presence_of(const GroupEntry& group) {
  switch (group.machine.state()) {
    case GroupState::kRunning:
      return Presence::kIn;
    case GroupState::kPaused:
      return group.paused_by_stage ? Presence::kOut : Presence::kPausedByOthers;
    case GroupState::kPausing:
      return Presence::kLeaves;
    case GroupState::kResuming:
      return Presence::kComes;
  }
  return Presence::kLeaves;
}

std::uint64_t remainder_of(const Node& node, const GroupEntry& group) {
  std::uint64_t bytes = 0;
  if (presence_of(group) != Presence::kOut) return bytes;
  for (const auto& [device, tags] : node.allocations.sums(group.id))
    for (const auto& [tag, sums] : tags) bytes += leaves(node, sums);
  return bytes;
}

GroupView StageViews::view(const StageRules& stage, const GroupEntry& group) const {
  GroupView view;
  view.id = group.id;
  view.name = group.machine.name();
  view.owner = reinterpret_cast<std::uint64_t>(group.account.get());
  view.presence = presence_of(group);
  view.first_turn = group.first_turn;
  view.has_ranks = !group.machine.members().empty();
  std::vector<RankId> stopped;
  for (const RankId id : group.machine.members().ids())
    if (const Rank* const rank = node_.find_rank(id); rank != nullptr && rank->work.stopped)
      stopped.push_back(id);
  if (const std::string ranks = group.machine.missing(); !ranks.empty())
    view.missing = ranks + " to reconnect";
  else if (!stopped.empty())
    view.missing =
        group.machine.members().names(stopped) + " to continue: stopped by Ctrl-Z or SIGSTOP";
  view.wishes = group.wishes;
  view.min_residency = stage.min_residency;
  view.leased = group.leased;
  view.lease_wanted = waits_.any(group.id, StageWaits::For::kLease);
  view.on.resize(stage.devices.size());
  const SumsByDevice& memory = node_.allocations.sums(group.id);
  for (const auto& [device, tags] : memory) {
    const std::optional<std::size_t> index = index_of(stage, device);
    if (!index) {
      view.refusal = "group '" + view.name + "' uses GPU " + to_string(device) +
                     ", which is not in the stage: add it to the stage";
      continue;
    }
    Footprint& on = view.on[*index];
    on.used = true;
    for (const auto& [tag, sums] : tags) {
      const std::uint64_t can = leaves(node_, sums);
      on.needs += sums.all;
      // What an operator has left there of a group that is paused stays until it is resumed.
      on.stays += view.presence == Presence::kPausedByOthers ? sums.resident : sums.resident - can;
      if (view.presence == Presence::kOut) on.remainder += can;
    }
  }
  if (view.presence == Presence::kOut || view.presence == Presence::kPausedByOthers)
    for (const auto& [device, bytes] : group.restore_needs)
      if (const std::optional<std::size_t> index = index_of(stage, device))
        view.on[*index].restore = bytes;
  // A group that has nothing yet may get it on every device that it sees. The same holds for a
  // group that has its first turn.
  const bool starts = view.first_turn == FirstTurn::kDue;
  for (std::size_t i = 0; i < stage.devices.size(); ++i)
    if (starts || memory.empty())
      view.on[i].used = view.on[i].used || sees(node_, group, stage.devices[i].device);
  for (const std::string& tag : group.wishes.leave_first) {
    GroupView::Part part{tag, DeviceBytes(stage.devices.size())};
    std::uint64_t all = 0;
    for (const auto& [device, tags] : memory)
      if (const auto sums = tags.find(tag); sums != tags.end())
        if (const std::optional<std::size_t> index = index_of(stage, device))
          all += part.bytes[*index] = sums->second.can_leave;
    if (all > 0) view.parts.push_back(std::move(part));
  }
  return view;
}

GroupView StageViews::beginning(const StageRules& stage, const std::string& name,
                                const Account& account) const {
  GroupView view;
  view.name = name;
  view.owner = reinterpret_cast<std::uint64_t>(&account);
  view.first_turn = FirstTurn::kDue;
  view.min_residency = stage.min_residency;
  view.on.resize(stage.devices.size());
  for (Footprint& on : view.on) on.used = true;
  return view;
}

DeviceBytes StageViews::resident(const StageRules& stage, const StageMemory& memory,
                                 bool of_takers) const {
  DeviceBytes bytes(stage.devices.size());
  for (const auto& [id, group] : node_.groups) {
    const auto m = memory.groups.find(id);
    const bool refused = m != memory.groups.end() && !m->second.refusal.empty();
    if ((group.stage == stage.name && !refused) != of_takers) continue;
    const SumsByDevice& sums = node_.allocations.sums(id);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto tags = sums.find(stage.devices[i].device);
      if (tags == sums.end()) continue;
      for (const auto& [tag, each] : tags->second) bytes[i] += each.resident;
    }
  }
  return bytes;
}

OthersUse StageViews::others_use(const StageRules& stage, const StageMemory& memory) const {
  OthersUse use{DeviceBytes(stage.devices.size()), resident(stage, memory, false)};
  const DeviceBytes ours = resident(stage, memory, true);
  for (std::size_t i = 0; i < stage.devices.size(); ++i) {
    const StageDevice& device = stage.devices[i];
    if (const auto seen = seen_.find(device.device); seen != seen_.end()) {
      const std::uint64_t used = device.capacity - std::min(device.capacity, seen->second.free);
      use.all[i] = used - std::min(used, ours[i]);
      continue;
    }
    // Nobody says, so it is what is known of.
    use.all[i] = use.brokered[i];
    for (const auto& [id, rank] : node_.ranks)
      for (const Unbrokered& each : rank.unbrokered)
        if (!each.host && each.device == device.device) use.all[i] += each.bytes;
  }
  return use;
}

StageView StageViews::of(const StageRules& stage, const StageMemory& memory, const OthersUse& seen,
                         Time now) const {
  StageView view{stage.name, stage.rules, stage.devices, seen.all, {}};
  // What they have got since counts at once. What they have freed counts when it is seen to be
  // free.
  const DeviceBytes brokered = resident(stage, memory, false);
  for (std::size_t i = 0; i < brokered.size(); ++i)
    view.taken[i] += brokered[i] - std::min(brokered[i], seen.brokered[i]);
  std::map<GroupId, std::size_t> at;
  for (const auto& [id, group] : node_.groups) {
    if (group.stage != stage.name) continue;
    at[id] = view.groups.size();
    view.groups.push_back(this->view(stage, group));
  }
  for (const auto& [id, rank] : node_.ranks) {
    const auto index = at.find(rank.group);
    if (index == at.end()) continue;
    GroupView& group = view.groups[index->second];
    const RankWork& work = rank.work;
    if (work.waiting && !std::exchange(group.waiting, true)) group.call = work.call;
    const bool answers = now < work.heard + kNoAnswer;
    group.working = group.working || (work.worked && answers);
    group.worked = std::max(group.worked, work.at);
  }
  return view;
}

}  // namespace amem
