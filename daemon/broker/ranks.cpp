#include "daemon/broker/ranks.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/plans/plan.h"
#include "daemon/sessions/messages.h"

namespace amem {
namespace {

constexpr Duration kHelloDeadline = std::chrono::seconds(10);

/// Where the kernel cannot tell, a process counts as ended with its session.
bool lives(const Peer& peer) {
  if (peer.process == nullptr) return false;
  pollfd ended{peer.process->get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 0;
}

std::string rank_label(const Rank& rank) {
  const std::string number =
      rank.number >= 0 ? std::to_string(rank.number) : "#" + std::to_string(rank.id);
  return "rank " + number + " (pid " + std::to_string(rank.peer.pid) + ")";
}

}  // namespace

Ranks::Ranks(const Means& means, SessionServer& sessions, EventHub& events, Operations& operations,
             Groups& groups, RankRequests& requests)
    : node_(means.node),
      loop_(means.loop),
      saved_(means.saved),
      sessions_(sessions),
      events_(events),
      operations_(operations),
      groups_(groups),
      requests_(requests),
      strangers_(loop_, "sessions closed that had not joined a group") {}

// ---- sessions -----------------------------------------------------------------------------------

void Ranks::session_opened(SessionId id, const Peer& peer) {
  sessions_by_id_[id] = {peer, 0, loop_.at(Clock::now() + kHelloDeadline, [this, id] {
                           const auto it = sessions_by_id_.find(id);
                           if (it != sessions_by_id_.end() && it->second.rank == 0)
                             sessions_.close(id, "it sent no Hello");
                         })};
}

void Ranks::session_packet(SessionId id, Packet& packet) {
  const auto it = sessions_by_id_.find(id);
  if (it == sessions_by_id_.end()) return;
  const Session& session = it->second;
  const Message& message = packet.message;
  const bool is_hello = message.which_body == amem_v1_SessionMessage_hello_tag;
  if (session.rank == 0) {
    if (!is_hello) return sessions_.close(id, "its first message is no Hello");
    return hello(id, message.seq, message.body.hello);
  }
  Rank* rank = node_.find_rank(session.rank);
  if (rank == nullptr) return;
  if (is_hello) return sessions_.close(id, "it sent a second Hello");
  const GroupId group = rank->group;
  requests_.handle(*rank, message);
  if (message.which_body == amem_v1_SessionMessage_free_tag) remove_harmless(group);
}

void Ranks::session_closed(SessionId id, const std::string& why) {
  const auto it = sessions_by_id_.find(id);
  if (it == sessions_by_id_.end()) return;
  const Session session = it->second;
  sessions_by_id_.erase(it);
  loop_.cancel(session.hello_timer);
  if (session.rank != 0)
    lose(session.rank, why);
  else if (!why.empty())
    strangers_.warn("session of pid {} closed: {}", session.peer.pid, why);
}

// ---- ranks come and go --------------------------------------------------------------------------

void Ranks::hello(SessionId session_id, std::uint64_t seq, const amem_v1_Hello& message) {
  Session& session = sessions_by_id_.at(session_id);
  auto refuse = [&](const Status& status) {
    sessions_.send(session_id, reply_message(seq, status));
    sessions_.close(session_id, "refused: " + status.text());
  };
  if (message.protocol != kProtocolVersion)
    return refuse({Code::kFailedPrecondition,
                   "the shim (" + printable(message.version) + ") speaks protocol " +
                       std::to_string(message.protocol) + ", this broker " +
                       std::to_string(kProtocolVersion) + "; use the same version of both"});
  Result<GroupEntry*> joined = groups_.join(message.group, session.peer);
  if (!joined.ok()) return refuse(joined.status());
  GroupEntry& group = *joined.value();

  Rank rank;
  rank.id = next_rank_++;
  rank.session = session_id;
  rank.group = group.id;
  rank.peer = session.peer;
  rank.number = message.rank < 0 ? -1 : message.rank;
  rank.program = printable(message.program);
  rank.shim_version = printable(message.version);
  if (rank.peer.process)
    rank.process_watch = loop_.watch(rank.peer.process->get(), EPOLLIN,
                                     [this, id = rank.id](std::uint32_t) { process_ended(id); });
  session.rank = rank.id;
  loop_.cancel(session.hello_timer);
  const std::string name = rank_label(rank);
  const std::string& program = rank.program;
  const bool gate_shut = group.machine.join(rank.id, name);
  spdlog::info("group '{}': {} joined: {}, shim {}", group.machine.name(), name, program,
               rank.shim_version);
  events_.publish(group.machine.name(), "rank_joined", name + " " + program);
  sessions_.send(session_id, welcome_message(seq, rank.id, gate_shut, group.machine.epoch()));
  node_.ranks.emplace(rank.id, std::move(rank));
  groups_.drive(group);
}

void Ranks::lose(RankId id, const std::string& why) {
  Rank* rank = node_.find_rank(id);
  if (rank == nullptr) return;
  if (rank->process_watch == 0 || !lives(rank->peer) || !shares(*rank)) return remove(id, why);
  GroupEntry& group = node_.group_of(*rank);
  const std::string reason = why.empty() ? "its session ended" : "disconnected: " + why;
  const std::string text =
      node_.label(*rank) + ": " + reason +
      ", but its process runs on with memory that other ranks have too; the group can be paused "
      "and resumed again when it has ended";
  spdlog::warn("group '{}': {}", group.machine.name(), text);
  events_.publish(group.machine.name(), "error", text);
  group.lost.insert(id);
  group.machine.lose(id, Clock::now());
  groups_.drive(group);
}

bool Ranks::shares(const Rank& rank) const {
  const std::set<RankId>& lost = node_.groups.at(rank.group).lost;
  return node_.allocations.any(rank.group, [&](const Allocation& a) {
    return a.held_by(rank.id) && std::any_of(a.holders.begin(), a.holders.end(), [&](RankId other) {
             return other != rank.id && !lost.contains(other);
           });
  });
}

void Ranks::process_ended(RankId id) {
  const Rank* rank = node_.find_rank(id);
  if (rank == nullptr) return;
  if (node_.group_of(*rank).lost.contains(id)) return remove(id, "");
  sessions_.close(rank->session, "");  // a child that it forked may hold it open
}

void Ranks::remove_harmless(GroupId id) {
  const auto it = node_.groups.find(id);
  if (it == node_.groups.end()) return;
  for (const RankId rank : it->second.lost)
    if (!shares(node_.ranks.at(rank))) return remove(rank, "");  // which looks for more
}

void Ranks::remove(RankId id, const std::string& why) {
  Rank* rank = node_.find_rank(id);
  if (rank == nullptr) return;
  GroupEntry& group = node_.group_of(*rank);
  const std::string name = node_.label(*rank);
  const std::string reason = why.empty() ? "its session ended" : "disconnected: " + why;
  if (why.empty())
    spdlog::info("group '{}': {} left: {}", group.machine.name(), name, reason);
  else
    spdlog::warn("group '{}': {} {}", group.machine.name(), name, reason);
  events_.publish(group.machine.name(), "rank_left", name + ": " + reason);

  const ResumeOperation* resume = operations_.resume_of(group.id);
  const bool leaves_unloaded = resume != nullptr && loads_for_others(node_.allocations, group.id,
                                                                     resume->loaders(), rank->id);
  if (rank->process_watch != 0) loop_.unwatch(rank->process_watch);
  saved_.rank_gone(group, *rank);
  for (Allocation& orphan : node_.allocations.drop_rank(id)) saved_.give_back(orphan);
  node_.ranks.erase(id);
  node_.reach.forget(id);
  group.lost.erase(id);
  group.machine.leave(id, leaves_unloaded, Clock::now());
  const GroupId group_id = group.id;
  groups_.drive(group);
  remove_harmless(group_id);
}

}  // namespace amem
