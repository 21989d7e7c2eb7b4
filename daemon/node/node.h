// Node: all that the broker knows, as plain tables. Broker, the operations and the reports work on
// it; it does nothing on its own.
//
// The broker's loop owns it.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/callback_scope.h"
#include "daemon/base/event_loop.h"
#include "daemon/memory/allocations.h"
#include "daemon/memory/extents.h"
#include "daemon/memory/pools.h"
#include "daemon/memory/spares.h"
#include "daemon/node/changes.h"
#include "daemon/node/history.h"
#include "daemon/node/records.h"
#include "daemon/node/stage_figures.h"
#include "daemon/owners/account.h"
#include "daemon/owners/peer_credentials.h"
#include "daemon/phases/group.h"
#include "daemon/phases/task.h"
#include "daemon/sessions/session_server.h"
#include "daemon/turns/view.h"

namespace amem {

/// Memory of a rank that is not brokered, as the rank reports it.
struct Unbrokered {
  DeviceUuid device;
  std::string kind;
  std::uint64_t bytes = 0;
  std::uint32_t count = 0;
  bool host = false;  // pinned memory of the host, not of a device
};

/// A driver call that a rank's shim does not know, as the rank reports it.
struct UnknownCall {
  std::string name;
  std::string fate;     // as the API names it
  std::string library;  // that is linked to it
};

/// So many unknown calls of a rank are kept. NVIDIA adds some forty calls a year, so a driver that
/// is years ahead of a shim has fewer. No account is charged for them, because they cost at most
/// 64 KiB a rank: 96 bytes each, and twice 80 where name and library have all of their 63
/// characters. An answer to ListRanks has 36 KiB of them.
inline constexpr std::size_t kMostUnknownCalls = 256;
inline constexpr std::size_t kMostEnded = 64;

/// What a rank reports of its calls and its work.
struct RankWork {
  bool waiting = false;  // a call waits at the gate
  std::string call;      // that call
  bool worked = false;   // it has work
  Time at{};             // when it last had
  Time heard{};          // the last report
  bool stopped = false;  // its process was, when its stage looked last: once a second
};

struct Rank {
  RankId id = 0;
  SessionId session = 0;
  GroupId group = 0;
  PeerCredentials peer;
  int number = -1;  // the launcher's
  std::string program;
  std::string shim_version;
  VisibleDevices devices;        // that its process sees; none: its shim does not say
  bool has_pool = false;         // it was given some of the pool
  bool unmaps_segments = false;  // when it is asked to, which it can be
  std::size_t creating = 0;      // its requests for memory that have not been answered
  std::vector<Unbrokered> unbrokered;
  std::vector<UnknownCall> unknown_calls;  // one of each name, kMostUnknownCalls at most
  bool unknown_calls_full = false;         // it has told more, and the log says so
  std::set<DeviceUuid> proved;             // devices that it may open
  std::set<DeviceUuid> freed;  // on which it has freed memory since its last AwaitClosed
  EventLoop::WatchId process_watch = 0;
  RankWork work;
  CallbackScope scope;  // of callbacks that end with the rank

  // A Save that was called off may still be writing to its extents. They go back to the pool when
  // the rank has answered, or its process has ended.
  std::set<Epoch> saving;  // Saves sent and not answered
  Extents limbo;

  Token key{};  // with which it may reconnect to the next broker; a rank that waits for that has no
                // session
  HolderEntry holder_entry;  // of the process
  Row row;
  Row limbo_row;

  /// Its program may make driver calls that no gate holds.
  bool passes_gates() const {
    return std::any_of(unknown_calls.begin(), unknown_calls.end(),
                       [](const UnknownCall& call) { return call.fate != "hidden"; });
  }
};

/// A group's share of a transaction over several nodes: what others that lose their leader may ask.
struct FleetShare {
  std::string transaction;  // its name on all nodes
  Side side = Side::kOut;
  bool asked = false;  // whether it may go on, or is about to
  bool went_on = false;
  bool given_up = false;  // before it had gone on, and nobody was told to
};

/// In place of a stage: the group was taken out of its stage, and no rank puts it back.
inline constexpr std::string_view kNoStage = "none";

/// What lives while the group does; an operation under way is in Operations.
struct GroupEntry {
  GroupEntry(GroupId group_id, std::string name, std::shared_ptr<Account> owner,
             const Deadlines& deadlines, MemoryView memory)
      : id(group_id),
        account(std::move(owner)),
        machine(std::move(name), deadlines, Clock::now(), std::move(memory)) {}

  /// As another broker has left it: Group's second constructor.
  GroupEntry(GroupId group_id, std::string name, std::shared_ptr<Account> owner,
             const Deadlines& deadlines, MemoryView memory, const RestartState& restart_state,
             Members members, Duration patience)
      : id(group_id),
        account(std::move(owner)),
        machine(std::move(name), deadlines, Clock::now(), std::move(memory), restart_state,
                std::move(members), patience) {}

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

  // For lines that its ranks can cause at will.
  LogLimit& log() { return account->log(); }
  LogLimit& refusals_log() { return account->refusals_log(); }

  GroupId id;
  std::shared_ptr<Account> account;
  Group machine;
  std::map<std::string, bool> tag_discards;   // the tags whose policy an operator has set
  std::map<std::string, bool> rank_discards;  // or a rank
  std::map<std::string, Form> tag_forms;      // the tags whose form an operator has set
  std::map<std::string, TagChanges> changes;  // of tags that pauses have saved
  std::map<std::string, Charge> policies;     // of each tag that is in one of these
  // Bytes; of a deep pause: what became free while its processes were checkpointed, and a tenth
  // more, but never more than is there once all groups are paused. Too many where others freed
  // memory meanwhile, once a rank has ended, and once some have been restored. None: not deep, or
  // not known.
  std::map<DeviceUuid, std::uint64_t> restore_needs;
  bool was_deep = false;  // since this broker began
  // Calls of the driver for its processes. They may go on when their operation has ended.
  std::weak_ptr<const void> process_calls;
  // What the operation under way waits for before it goes on, for people; empty: for nothing but
  // its ranks, or there is none.
  std::string waits_for;
  std::set<RankId> lost;  // session ended, but the process lives and shares memory
  // The launcher's ranks that have ended while others of the group lived, by their number, until
  // another has it: their labels. kMostEnded at most.
  std::map<int, std::string> ended;
  std::optional<EventLoop::TimerId> timer;
  std::string paused_by;  // who has asked for the last pause, for people; empty: another broker's
  std::deque<FleetShare> shares;  // the last ones, the newest first
  std::string stage;              // that it takes turns in; empty or kNoStage: none
  TurnWishes wishes;              // of its turns
  bool paused_by_stage = false;   // of a group that is paused
  bool leased = false;            // it has asked for its turn and had it
  FirstTurn first_turn = FirstTurn::kOver;
  // The devices that the first process of a group without ranks will see; none: not known.
  std::set<DeviceUuid> starts_on;
  Row row;
};

struct Node {
  /// The record outlives this object.
  Node(std::uint64_t chunk, Record& record, Pools::Use renew, Pools::Use release, Pools::More more)
      : records(record),
        pools(chunk, record, std::move(renew), std::move(release), std::move(more)) {}

  Records records;
  Allocations allocations;
  Pools pools;
  std::uint64_t pool_configured = 0;
  std::uint64_t pool_reserve = 0;          // of that, what stays pinned
  Duration pool_idle{};                    // for how long the rest does without need
  Form pool_form = Form::kAuto;            // of tags for which nobody has set another
  Retain retain = Retain::kAuto;           // what pauses do to find bytes that did not change
  std::uint64_t swap_wave = 0;             // copied bytes of each keeper at a time; 0: no waves
  bool hand_on = true;                     // memory in swaps, within one owner
  Duration spare_idle{};                   // for how long memory of a pause waits for a resume
  GuestPolicy guests = GuestPolicy::kPin;  // of pauses that say nothing else
  bool deep_pauses = false;                // are allowed
  std::string pool_error;
  std::map<RankId, Rank> ranks;
  std::map<GroupId, GroupEntry> groups;
  Totals totals;
  History history;
  std::map<std::string, StageFigures> stages;  // by name
  std::set<const Spares*> spares;              // of the swaps under way

  bool has_spares() const { return spare_idle > Duration{}; }

  /// How a pause saves this allocation's bytes.
  Form form(const GroupEntry& group, const Allocation& a) const {
    const auto set = group.tag_forms.find(a.tag);
    return set != group.tag_forms.end() ? set->second : pool_form;
  }

  /// Returns the bytes that ranks have on this device, plus those that change hands.
  std::uint64_t brokered(const DeviceUuid& device) const {
    std::uint64_t bytes =
        allocations.usage([&device](const Allocation& a) { return a.device == device; }).resident;
    for (const Spares* each : spares) bytes += each->bytes(device);
    return bytes;
  }

  GroupEntry& group_of(const Rank& rank) { return groups.at(rank.group); }
  /// The part of the pool that the rank's owner has.
  OwnPool& pool_of(const Rank& rank) { return pools.of(rank.peer.account); }
  /// Returns the rank's name in messages.
  const std::string& label(const Rank& rank) {
    return group_of(rank).machine.members().label(rank.id);
  }
  Rank* find_rank(RankId id) {
    const auto it = ranks.find(id);
    return it != ranks.end() ? &it->second : nullptr;
  }
  const Rank* find_rank(RankId id) const { return const_cast<Node*>(this)->find_rank(id); }
};

}  // namespace amem
