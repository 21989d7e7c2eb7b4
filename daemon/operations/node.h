// Node: all that the broker knows, as plain tables. Broker, the operations and the reports work
// on it; it does nothing by itself.
//
// The broker's loop owns it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/event_loop.h"
#include "daemon/memory/allocations.h"
#include "daemon/memory/extents.h"
#include "daemon/memory/pool.h"
#include "daemon/memory/reach.h"
#include "daemon/phases/group.h"
#include "daemon/sessions/session_server.h"

namespace amem {

/// Device memory of a rank that is not brokered, as the rank reports it.
struct Unbrokered {
  DeviceUuid device;
  std::string kind;
  std::uint64_t bytes = 0;
  std::uint32_t count = 0;
};

struct Rank {
  RankId id = 0;
  SessionId session = 0;
  GroupId group = 0;
  Peer peer;
  int number = -1;  // the launcher's
  std::string program;
  std::string shim_version;
  std::vector<Unbrokered> unbrokered;
  EventLoop::WatchId process_watch = 0;

  // A Save that was called off may still be writing to its extents. They go back to the pool when
  // the rank has answered, or its process has ended.
  std::set<Epoch> saving;  // Saves sent and not answered
  Extents limbo;
};

/// What lives as long as the group; an operation under way is in Operations.
struct GroupEntry {
  GroupEntry(GroupId group_id, std::string name, uid_t owner, const Deadlines& deadlines,
             MemoryView memory)
      : id(group_id),
        uid(owner),
        machine(std::move(name), deadlines, Clock::now(), std::move(memory)) {}

  /// A pause drops the bytes of this allocation. NCCL's are always kept; else what the pause itself
  /// drops (`now`: tags) goes before what an operator has set for the tag, that before what a rank
  /// has set, and that before what the region says.
  bool discards(const Allocation& a, const std::set<std::string>& now = {}) const {
    if (a.tag == kNcclTag) return false;
    if (now.contains(a.tag)) return true;
    for (const auto* set : {&tag_discards, &rank_discards})
      if (const auto it = set->find(a.tag); it != set->end()) return it->second;
    return a.region == RegionPolicy::kDiscard;
  }

  GroupId id;
  uid_t uid;
  Group machine;
  std::map<std::string, bool> tag_discards;   // the tags whose policy an operator has set
  std::map<std::string, bool> rank_discards;  // or a rank
  std::map<std::string, SaveForm> tag_forms;  // likewise
  std::set<RankId> lost;  // session ended, but the process lives and shares memory
  std::optional<EventLoop::TimerId> timer;
};

struct Node {
  explicit Node(std::uint64_t chunk) : extents(chunk) {}

  Allocations allocations;
  ExtentAllocator extents;
  std::vector<PoolSegment> segments;  // by the extents' segment index
  Reach reach;
  std::uint64_t pool_configured = 0;
  SaveForm pool_form = SaveForm::kAuto;  // of tags for which nobody has set another
  std::uint64_t swap_wave = 0;           // bytes of each keeper at a time; 0: no waves
  std::string pool_error;
  std::map<RankId, Rank> ranks;
  std::map<GroupId, GroupEntry> groups;

  /// How a pause saves this allocation's bytes.
  SaveForm form(const GroupEntry& group, const Allocation& a) const {
    const auto set = group.tag_forms.find(a.tag);
    return set != group.tag_forms.end() ? set->second : pool_form;
  }

  GroupEntry* find_group(const std::string& name) {
    for (auto& [id, entry] : groups)
      if (entry.machine.name() == name) return &entry;
    return nullptr;
  }
  const GroupEntry* find_group(const std::string& name) const {
    return const_cast<Node*>(this)->find_group(name);
  }
  GroupEntry& group_of(const Rank& rank) { return groups.at(rank.group); }
  /// What the rank is called in messages.
  const std::string& label(const Rank& rank) {
    return group_of(rank).machine.members().label(rank.id);
  }
  Rank* find_rank(RankId id) {
    const auto it = ranks.find(id);
    return it != ranks.end() ? &it->second : nullptr;
  }
};

}  // namespace amem
