#include "daemon/broker/ranks.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "common/job.h"
#include "common/utf8.h"
#include "common/version.h"
#include "daemon/base/ids.h"
#include "daemon/plans/plan.h"
#include "daemon/sessions/messages.h"

namespace amem {
namespace {

constexpr Duration kHelloDeadline = std::chrono::seconds(10);

Offers offers_of(const Node& node) {
  return {.hashes = node.retain != Retain::kOff,
          .has_spares = node.has_spares(),
          .takes_parts = node.hand_on};
}

/// Shims of all versions print it: it is all that a program's user learns.
Status other_protocol(const amem_v1_Hello& message) {
  const std::string what_to_do =
      message.protocol < kProtocolVersion
          ? "start the program again with the libamem_shim.so of this amemd's version"
          : "amemd is older. Restart it when no job runs, or install the version of the shim first";
  return {Code::kFailedPrecondition, "the shim in this process has version " +
                                         printable(message.version) + " and session protocol " +
                                         std::to_string(message.protocol) + ", but amemd has " +
                                         kVersion + " and session protocol " +
                                         std::to_string(kProtocolVersion) + ": " + what_to_do};
}

std::string whole_name_in(const amem_v1_Hello& message) {
  return whole_group_name(message.group, message.job);
}

VisibleDevices devices_in(const amem_v1_Hello& message) {
  VisibleDevices devices;
  for (const auto& device : std::span(message.devices, message.devices_count))
    devices.push_back(make_uuid(device));
  return devices;
}

}  // namespace

std::string rank_label(const Rank& rank) {
  const std::string number =
      rank.number >= 0 ? std::to_string(rank.number) : "#" + std::to_string(rank.id);
  return "rank " + number + " (pid " + std::to_string(rank.peer.pid) + ")";
}

Ranks::Ranks(const OperationContext& context, SessionServer& sessions, EventHub& events,
             Operations& operations, Groups& groups, RankRequests& requests, Stages& stages)
    : node_(context.node),
      loop_(context.loop),
      workers_(context.workers),
      saved_(context.saved),
      outbox_(context.outbox),
      sessions_(sessions),
      events_(events),
      operations_(operations),
      groups_(groups),
      requests_(requests),
      stages_(stages) {}

Ranks::~Ranks() {
  for (const auto& [id, leaving] : leaving_) loop_.unwatch(leaving.watch);
}

// ---- sessions -----------------------------------------------------------------------------------

void Ranks::session_opened(SessionId id, const PeerCredentials& peer) {
  sessions_by_id_[id] = {.peer = peer,
                         .hello_timer = loop_.at(Clock::now() + kHelloDeadline, [this, id] {
                           const auto it = sessions_by_id_.find(id);
                           if (it == sessions_by_id_.end()) return;
                           if (it->second.rank == 0)
                             sessions_.close(id, "it sent no Hello");
                           else if (it->second.returning)
                             sessions_.close(id, "it did not say what it holds");
                         })};
}

void Ranks::session_packet(SessionId id, Packet& packet) {
  const auto it = sessions_by_id_.find(id);
  if (it == sessions_by_id_.end()) return;
  const Session& session = it->second;
  const Message& message = packet.message;
  if (session.refused) return;
  if (session.returning) {
    if (message.which_body != amem_v1_SessionMessage_inventory_tag)
      return sessions_.close(id, "it reconnects and does not say what it holds");
    return inventory(id, message.body.inventory);
  }
  const bool is_hello = message.which_body == amem_v1_SessionMessage_hello_tag;
  if (session.rank == 0) {
    if (!is_hello) return sessions_.close(id, "its first message is not a Hello");
    return hello(id, message.seq, message.body.hello);
  }
  Rank* rank = node_.find_rank(session.rank);
  if (rank == nullptr) return;
  if (is_hello) return sessions_.close(id, "it sent a second Hello");
  // Only this may end what a rank that is lost shares.
  const bool lets_go = message.which_body == amem_v1_SessionMessage_free_tag &&
                       has_lost(node_.allocations.find(message.body.free.id));
  requests_.handle(*rank, packet);
  if (lets_go) remove_harmless();
}

void Ranks::session_closed(SessionId id, const std::string& why) {
  const auto it = sessions_by_id_.find(id);
  if (it == sessions_by_id_.end()) return;
  const Session session = std::move(it->second);
  sessions_by_id_.erase(it);
  loop_.cancel(session.hello_timer);
  if (Rank* rank = node_.find_rank(session.rank); session.returning && rank != nullptr)
    rank->session = 0;  // it may try again
  else if (session.rank != 0)
    lose(session.rank, why);
  else if (!why.empty())
    session.peer.account->log().warn("session of pid {} closed: {}", session.peer.pid, why);
}

// ---- ranks come and go --------------------------------------------------------------------------

void Ranks::hello(SessionId session_id, std::uint64_t seq, const amem_v1_Hello& message) {
  Session& session = sessions_by_id_.at(session_id);
  auto refuse = [&](const Status& status) {
    sessions_.send(session_id, reply_message(seq, status));
    sessions_.close(session_id, "refused: " + status.text());
  };
  if (message.protocol != kProtocolVersion) return refuse(other_protocol(message));
  if (Token none{}; std::memcmp(message.session, none.data(), none.size()) != 0)
    return come_back(session_id, seq, message);
  // The process will create contexts. To the driver, which makes them, spares are in use.
  if (const auto closed = workers_.close_spares_on(devices_in(message)); !closed.empty())
    return workers_.await_closed(closed, [this, session_id, seq, message] {
      const auto waits = sessions_by_id_.find(session_id);
      if (waits != sessions_by_id_.end() && waits->second.rank == 0)
        hello(session_id, seq, message);
    });
  forget_unwelcomed(session.peer, message);
  const std::string stage = printable(message.stage);
  Result<GroupEntry*> joined = groups_.join(whole_name_in(message), session.peer, stage);
  if (!joined.ok()) return refuse(joined.status());
  GroupEntry& group = *joined.value();

  Rank rank;
  rank.id = next_rank_++;
  rank.session = session_id;
  rank.group = group.id;
  rank.peer = session.peer;
  rank.number = std::max(message.rank, -1);
  rank.program = printable(message.program);
  rank.shim_version = printable(message.version);
  rank.devices = devices_in(message);
  rank.unmaps_segments = message.unmaps_segments;
  if (rank.peer.process)
    rank.process_watch = loop_.watch(rank.peer.process->get(), EPOLLIN,
                                     [this, id = rank.id](std::uint32_t) { process_ended(id); });
  if (Status status = put_on_record(rank); !status.ok()) {
    if (rank.process_watch != 0) loop_.unwatch(rank.process_watch);
    groups_.drive(group);  // which is gone if this would have been its first
    return refuse(status);
  }
  session.rank = rank.id;
  loop_.cancel(session.hello_timer);
  const std::string name = rank_label(rank);
  const std::string& program = rank.program;
  const bool lacked = !group.ended.empty() || !group.machine.lost().empty();
  const bool gate_shut = group.machine.join(rank.id, name);
  group.ended.erase(rank.number);
  if (lacked) write_lost(group);
  group.log().info("group '{}': {} joined: {}, shim {}", group.machine.name(), name, program,
                   rank.shim_version);
  events_.publish(&group, "rank_joined", name + " " + program);
  sessions_.send(session_id,
                 welcome_message(seq, rank.id, gate_shut, group.machine.epoch(), offers_of(node_),
                                 rank.key, gate_shut ? group.paused_by : "",
                                 group.first_turn == FirstTurn::kDue ||
                                     group.first_turn == FirstTurn::kLapsed));
  node_.pools.enter(rank.peer.account);
  node_.pool_of(rank).reach.join(rank.id, group.id);
  const RankId id = rank.id;
  stages_.rank_joined(group, node_.ranks.emplace(id, std::move(rank)).first->second, stage);
  groups_.drive(group);
}

/// The broker before may have died between the row of this rank and its Welcome: the rank does not
/// know its key, and the row stands for nobody.
void Ranks::forget_unwelcomed(const PeerCredentials& peer, const amem_v1_Hello& message) {
  const auto found = std::find_if(node_.ranks.begin(), node_.ranks.end(), [&](const auto& entry) {
    const Rank& rank = entry.second;
    return rank.session == 0 && same_process(rank.peer, peer) &&
           rank.number == std::max(message.rank, -1) &&
           node_.group_of(rank).machine.name() == whole_name_in(message);
  });
  if (found != node_.ranks.end()) remove(found->first, "it joins again");
}

/// From here on it may reconnect to the next broker, if that can tell whether it lives.
Status Ranks::put_on_record(Rank& rank) {
  if (Status status = node_.records.used_rank(rank.id); !status.ok()) return status;
  Record& record = node_.records.record();
  if (!record.has_log()) return {};
  if (!rank.peer.process) {
    rank.peer.account->log().warn(
        "pid {} cannot reconnect to another amemd, because amemd cannot identify the process. Run "
        "amemd in its pid namespace (hostPID or shareProcessNamespace in Kubernetes, --pid host), "
        "or use Linux 6.5 or newer",
        rank.peer.pid);
    return {};
  }
  Result<Token> key = random_token();
  if (!key.ok()) return key.status();
  rank.key = key.value();
  rank.holder_entry = record.hold(HolderKind::kProcess, rank.id, rank.peer.process);
  record.flush();
  return node_.records.write(rank);
}

// ---- ranks of the broker before -----------------------------------------------------------------

void Ranks::expect(Rank rank) {
  rank.has_pool = true;  // for all that is known
  rank.process_watch = loop_.watch(rank.peer.process->get(), EPOLLIN,
                                   [this, id = rank.id](std::uint32_t) { process_ended(id); });
  node_.pools.enter(rank.peer.account);
  node_.pool_of(rank).reach.join(rank.id, rank.group);
  node_.ranks.emplace(rank.id, std::move(rank));
}

void Ranks::come_back(SessionId session_id, std::uint64_t seq, const amem_v1_Hello& message) {
  Session& session = sessions_by_id_.at(session_id);
  Token key{};
  std::memcpy(key.data(), message.session, key.size());
  const auto is_it = [&](const auto& entry) {
    const Rank& rank = entry.second;
    return same_token(rank.key, key) && rank.peer.pid == session.peer.pid &&
           rank.peer.uid == session.peer.uid;
  };
  const auto found = std::find_if(node_.ranks.begin(), node_.ranks.end(), is_it);
  if (found != node_.ranks.end() && found->second.session != 0) {
    // Its connection may have ended without us knowing yet. The shim tries again after this code.
    sessions_.send(session_id, reply_message(seq, {Code::kUnavailable,
                                                   "the session of " + rank_label(found->second) +
                                                       " has not ended yet. Try again"}));
    session.refused = true;
    return;
  }
  if (found == node_.ranks.end()) {
    sessions_.send(
        session_id,
        reply_message(
            seq, {Code::kNotFound, "this broker does not know the session: no session of pid " +
                                       std::to_string(session.peer.pid) + " waits to reconnect"}));
    session.refused = true;
    session.peer.account->refusals_log().warn(
        "pid {} of {} tries to reconnect, but amemd does not expect it", session.peer.pid,
        to_string(session.peer.account->owner()));
    return;
  }
  Rank& rank = found->second;
  const GroupEntry& group = node_.group_of(rank);
  rank.session = session_id;
  rank.devices = devices_in(message);
  session.rank = rank.id;
  session.returning = true;
  session.gate_shut = message.gate_shut;
  session.unmaps_segments = message.unmaps_segments;
  sessions_.send(session_id, welcome_message(seq, rank.id, message.gate_shut, group.machine.epoch(),
                                             offers_of(node_), rank.key));
}

void Ranks::inventory(SessionId session_id, const amem_v1_Inventory& message) {
  Session& session = sessions_by_id_.at(session_id);
  const RankId its = session.rank;
  for (const amem_v1_Inventory_Item& item : std::span(message.items, message.items_count)) {
    const Allocation* a = node_.allocations.find(item.id);
    if (a != nullptr && (a->shared_by(its) || a->opened_by(its)))
      session.inventory.emplace(item.id, item);
    else
      ++session.unknown;
  }
  if (!message.last) return;
  loop_.cancel(session.hello_timer);
  session.returning = false;
  const auto inventory = std::exchange(session.inventory, {});
  Rank& rank = node_.ranks.at(session.rank);
  GroupEntry& group = node_.group_of(rank);
  rank.unmaps_segments = session.unmaps_segments;
  saved_.returned(rank);
  std::vector<AllocationId> gone;
  for (const Allocation* a : node_.allocations.of_group(group.id))
    if (a->shared_by(rank.id) && !inventory.contains(a->id)) gone.push_back(a->id);
  for (const Allocation* a : node_.allocations.opened_by(rank.id))
    if (!inventory.contains(a->id)) gone.push_back(a->id);
  for (const AllocationId id : gone) requests_.free(rank, id);
  // It is told anew what it reaches.
  Reach& reach = node_.pool_of(rank).reach;
  reach.forget(rank.id);
  reach.join(rank.id, group.id);
  std::uint64_t unknown = session.unknown;
  for (const auto& [id, item] : inventory) {
    Allocation* a = node_.allocations.find(id);
    if (a == nullptr || !(a->shared_by(rank.id) || a->opened_by(rank.id))) {
      ++unknown;
      continue;
    }
    for (Guest& guest : a->guests)
      if (guest.rank == rank.id) guest.paused = item.paused;
    for (std::uint32_t reason = 1; reason < 32; ++reason)
      if ((item.pins >> reason & 1U) != 0)
        (void)node_.allocations.pin(id,
                                    {rank.id, pin_reason(static_cast<amem_v1_PinReason>(reason))});
    if (a->shared_by(rank.id) && a->keeper() == rank.id) requests_.let_reach_pool(*a);
  }
  const std::string& name = node_.label(rank);
  group.log().info("group '{}': {} has reconnected with {} allocations", group.machine.name(), name,
                   inventory.size() + session.unknown - unknown);
  if (unknown > 0)
    group.log().warn(
        "group '{}': {} has {} allocations without a record. A pause leaves them where they are. "
        "Restart the rank",
        group.machine.name(), name, unknown);
  events_.publish(&group, "rank_joined", name + " has reconnected");
  const bool stays_shut = group.machine.join(rank.id, name);
  stages_.rank_joined(group, rank, {});
  release_leftovers(rank, session.gate_shut, inventory);
  const bool is_told = !group.machine.waiting_for(rank.id).empty();  // by what is under way
  if (session.gate_shut && !stays_shut && !is_told)
    sessions_.send(session_id, ask_message(group.machine.epoch(), RankPhase::kOpen));
  groups_.drive(group);
  remove_harmless();
}

void Ranks::release_leftovers(const Rank& rank, bool gate_shut,
                              const std::map<AllocationId, amem_v1_Inventory_Item>& inventory) {
  const Group& machine = node_.group_of(rank).machine;
  const RestartState is = restart_state_of(machine);
  const bool ends_there = !is.under_way || is.under_way->restart == OnRestart::kRollBack;
  const bool stays_paused = is.stable_state == GroupState::kPaused && ends_there;
  const bool partly =
      node_.allocations.any(rank.group, [](const Allocation& a) { return a.may_leave(); });
  // With all of its own, a rank lets go of what it has open of other groups.
  const bool all_leaves = stays_paused
                              ? !partly
                              : is.under_way && is.under_way->restart == OnRestart::kRelease &&
                                    is.under_way->task.selection.all();
  // By their ids: it may get others with their tags before it has read this, and what stays on its
  // device its maker keeps.
  std::vector<AllocationId> leftovers;
  for (const auto& [id, item] : inventory) {
    const Allocation* a = node_.allocations.find(id);
    if (a == nullptr || item.paused) continue;
    const bool leaves =
        a->shared_by(rank.id) ? a->paused && !a->resident() : all_leaves && a->opened_by(rank.id);
    if (leaves) leftovers.push_back(id);
  }
  if (all_leaves) node_.allocations.set_paused(rank.id, true);
  // It may be in the middle of a pause that has ended: its frees wait for the last Release.
  const bool ends = stays_paused && !is.under_way && gate_shut && !machine.deep();
  if (leftovers.empty() && !ends) return;
  outbox_.send_release(rank.id, machine.epoch(), leftovers,
                       !stays_paused);  // nobody waits for the answer
}

void Ranks::lose(RankId id, const std::string& why) {
  Rank* rank = node_.find_rank(id);
  if (rank == nullptr) return;
  GroupEntry& group = node_.group_of(*rank);
  const bool deep = group.machine.deep();
  if (rank->process_watch == 0 || !rank->peer.lives() || (!deep && !shares(*rank)))
    return remove(id, why);
  const bool may_return = deep && rank->key != Token();
  std::string text =
      node_.label(*rank) + ": " + (why.empty() ? "its session ended" : "disconnected: " + why);
  if (may_return)
    text +=
        ". Its process may be checkpointed, so amemd keeps its memory and restores it with the "
        "group. It can reconnect. If it does not, end that process";
  else if (deep)
    text +=
        ", but its process may be checkpointed. A resume restores it. The group runs again when "
        "this process has ended";
  else
    text +=
        ", but its process continues to run with memory that other ranks share. The group can "
        "pause and resume again when this process has ended";
  group.log().warn("group '{}': {}", group.machine.name(), text);
  events_.publish(&group, "error", text);
  if (may_return) {
    rank->session = 0;
    group.machine.expect(id);
    return groups_.drive(group);
  }
  group.lost.insert(id);
  saved_.may_have_written(group, *rank);
  group.machine.lose(id, Clock::now());
  groups_.drive(group);
}

bool Ranks::shares(const Rank& rank) const {
  const auto serves = [&](RankId other) {
    return other != rank.id && !node_.groups.at(node_.ranks.at(other).group).lost.contains(other);
  };
  const auto shared = [&](const Allocation& a) {
    return std::any_of(a.sharers.begin(), a.sharers.end(), serves) ||
           std::any_of(a.guests.begin(), a.guests.end(),
                       [&](const Guest& guest) { return serves(guest.rank); });
  };
  const std::vector<Allocation*> opened = node_.allocations.opened_by(rank.id);
  const std::vector<const Allocation*> owned = std::as_const(node_.allocations).shared_by(rank.id);
  const auto is_shared = [&](const Allocation* a) { return shared(*a); };
  return std::any_of(opened.begin(), opened.end(), is_shared) ||
         std::any_of(owned.begin(), owned.end(), is_shared);
}

bool Ranks::has_lost(const Allocation* a) const {
  const auto lost = [&](RankId rank) {
    return node_.groups.at(node_.ranks.at(rank).group).lost.contains(rank);
  };
  return a != nullptr && (std::any_of(a->sharers.begin(), a->sharers.end(), lost) ||
                          std::any_of(a->guests.begin(), a->guests.end(),
                                      [&](const Guest& guest) { return lost(guest.rank); }));
}

void Ranks::process_ended(RankId id) {
  const Rank* rank = node_.find_rank(id);
  if (rank == nullptr) return;
  if (rank->session == 0 || node_.group_of(*rank).lost.contains(id)) return remove(id, "");
  sessions_.close(rank->session, "");  // a child that it forked may hold it open
}

void Ranks::remove_harmless() {
  for (const auto& [id, group] : node_.groups)
    for (const RankId rank : group.lost)
      if (!group.machine.deep() && !shares(node_.ranks.at(rank)))
        return remove(rank, "");  // which looks for more
}

/// A process has what it was given of the pool until it ends, session or not.
void Ranks::let_go_of_pool(const Rank& rank) {
  if (!rank.has_pool || !rank.peer.lives()) return left(rank.id, rank.peer.account);
  Leaving& leaving = leaving_[rank.id];
  Amounts amounts;
  amounts[Resource::kSessions] = amounts[Resource::kDescriptors] = 1;
  leaving.charge = rank.peer.account->charge(amounts);
  leaving.process = std::make_shared<const Fd>(rank.peer.process->duplicate());
  leaving.account = rank.peer.account;
  leaving.watch = loop_.watch(leaving.process->get(), EPOLLIN, [this, id = rank.id](std::uint32_t) {
    const auto ended = leaving_.extract(id);
    loop_.unwatch(ended.mapped().watch);
    left(id, ended.mapped().account);
  });
  if (leaving.watch != 0) return;
  leaving_.erase(rank.id);
  left(rank.id, rank.peer.account);
}

void Ranks::left(RankId id, const std::shared_ptr<Account>& account) {
  node_.pools.of(account).reach.forget(id);
  node_.pools.leave(account);
}

/// A process without a launcher's number may be a helper that has done its work. So may be one with
/// the number of another rank.
void Ranks::note_end(GroupEntry& group, int number, const std::string& label) {
  const std::vector<RankId> others = group.machine.members().ids();
  const auto has_number = [&](RankId other) { return node_.ranks.at(other).number == number; };
  if (number < 0 || others.empty() || group.ended.size() == kMostEnded ||
      std::any_of(others.begin(), others.end(), has_number))
    return;
  group.ended[number] = label;
}

/// What is under way writes the group's row when it ends, and until then the row is the
/// operation's.
void Ranks::write_lost(GroupEntry& group) {
  if (!group.machine.under_way() && !group.machine.members().empty())
    (void)node_.records.write(group);
}

void Ranks::remove(RankId id, const std::string& why) {
  Rank* rank = node_.find_rank(id);
  if (rank == nullptr) return;
  GroupEntry& group = node_.group_of(*rank);
  const std::string name = node_.label(*rank);
  const int number = rank->number;
  const std::string bare_name = rank_label(*rank);
  // Some frameworks end workers that do nothing for long, as those of a paused group do.
  const bool was_paused = group.machine.state() == GroupState::kPaused;
  const std::string reason = (why.empty() ? "its session ended" : "disconnected: " + why) +
                             (was_paused ? ", while the group was paused" : "");
  if (why.empty() && was_paused)
    group.log().warn("group '{}': {} left: {}", group.machine.name(), name, reason);
  else if (why.empty())
    group.log().info("group '{}': {} left: {}", group.machine.name(), name, reason);
  else
    group.log().warn("group '{}': {} {}", group.machine.name(), name, reason);
  events_.publish(&group, "rank_left", name + ": " + reason);

  ResumeOperation* const resume = operations_.resume_of(group.id);
  const bool leaves_unloaded = resume != nullptr && loads_for_others(node_.allocations, group.id,
                                                                     resume->loaders(), rank->id);
  if (rank->process_watch != 0) loop_.unwatch(rank->process_watch);
  saved_.rank_gone(group, *rank);
  for (Allocation& unshared : node_.allocations.drop_rank(id)) saved_.give_back(unshared);
  for (Allocation* a : node_.allocations.of_group(kNoGroup)) saved_.give_back(*a);
  let_go_of_pool(*rank);
  node_.ranks.erase(id);
  operations_.elastic().gone(id);
  stages_.changed(group);
  group.lost.erase(id);
  group.machine.leave(id, leaves_unloaded, Clock::now());
  note_end(group, number, bare_name);
  if (!group.ended.empty() || !group.machine.lost().empty()) write_lost(group);
  if (resume != nullptr) resume->maker_gone(id);
  groups_.drive(group);
  remove_harmless();
}

}  // namespace amem
