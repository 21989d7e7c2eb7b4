#include "daemon/broker/broker.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/operations/reports.h"
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

Broker::Broker(EventLoop& loop, const Config& config, const Devices& devices, const Nvml& nvml)
    : loop_(loop),
      config_(config),
      devices_(devices),
      nvml_(nvml),
      node_(config.pool_chunk),
      strangers_(loop, "sessions closed that had not joined a group"),
      complaints_(loop, "requests of ranks that could not be served"),
      sessions_(loop, *this),
      saved_(node_, loop),
      outbox_(node_, sessions_),
      operations_({node_, devices, nvml, outbox_, saved_, loop}, config.swap_duplex,
                  [this](GroupEntry& group) { drive(group); }),
      pool_(devices) {
  node_.pool_configured = config.pool_size;
  node_.pool_form = config.pool_save;
  node_.swap_wave = config.swap_wave;
}

Broker::~Broker() { shut(); }

Status Broker::start() {
  const std::string path = config_.runtime_dir + "/" + std::string(kSessionSocket);
  if (Status status = sessions_.listen(path, config_.session_mode); !status.ok()) return status;
  pool_.start(config_.pool_size, config_.segment(),
              {[this](PoolSegment segment) {
                 loop_.post([this, segment = std::move(segment)]() mutable {
                   pool_segment_ready(std::move(segment));
                 });
               },
               [this](std::string error) {
                 loop_.post([this, error = std::move(error)] { pool_finished(error); });
               }});
  return {};
}

void Broker::shut() {
  pool_.stop();
  operations_.close({Code::kUnavailable, "amemd is ending; the operation did not finish"});
  events_.close();
  sessions_.shut();
}

// ---- pool ---------------------------------------------------------------------------------------

void Broker::pool_segment_ready(PoolSegment segment) {
  node_.extents.add_segment(segment.size);
  node_.reach.add_segment(segment.size, segment.numa_node);
  node_.segments.push_back(std::move(segment));
  for (const auto& [id, rank] : node_.ranks) outbox_.give_segments(id, node_.reach.extend(id));
}

void Broker::pool_finished(const std::string& error) {
  node_.pool_error = error;
  events_.publish("", error.empty() ? "pool" : "error",
                  "pool: " + format_size(node_.extents.total()) + " of " +
                      format_size(node_.pool_configured) + " ready" +
                      (error.empty() ? "" : ": " + error));
}

// ---- sessions -----------------------------------------------------------------------------------

void Broker::session_opened(SessionId id, const Peer& peer) {
  sessions_by_id_[id] = {peer, 0, loop_.at(Clock::now() + kHelloDeadline, [this, id] {
                           const auto it = sessions_by_id_.find(id);
                           if (it != sessions_by_id_.end() && it->second.rank == 0)
                             sessions_.close(id, "it sent no Hello");
                         })};
}

void Broker::session_packet(SessionId id, Packet& packet) {
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
  handle(*rank, message);
}

void Broker::session_closed(SessionId id, const std::string& why) {
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

void Broker::hello(SessionId session_id, std::uint64_t seq, const amem_v1_Hello& message) {
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
  Result<GroupEntry*> joined = join_group(message.group, session.peer);
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
  drive(group);
}

Result<GroupEntry*> Broker::join_group(const std::string& name, const Peer& peer) {
  if (!valid_group_name(name))
    return Status(Code::kInvalidArgument,
                  "\"" + printable(name.c_str()) +
                      "\" is no group name; use 1 to 63 of the characters A-Z a-z 0-9 . _ -, not "
                      "beginning with . or -");
  if (GroupEntry* group = node_.find_group(name)) {
    if (group->uid != peer.uid)
      return Status(Code::kPermissionDenied, "group '" + name + "' belongs to uid " +
                                                 std::to_string(group->uid) + ", this is uid " +
                                                 std::to_string(peer.uid) +
                                                 "; choose another group name");
    return group;
  }
  const GroupId id = next_group_++;
  const auto [it, added] =
      node_.groups.try_emplace(id, id, name, peer.uid, config_.deadlines, memory_of(id));
  spdlog::info("group '{}': begun by uid {}", name, peer.uid);
  events_.publish(name, "state", "running", v1::GROUP_STATE_RUNNING);
  return &it->second;
}

MemoryView Broker::memory_of(GroupId group) const {
  return {[this, group](const Selection& what) {
            return node_.allocations.any(
                group, [&](const Allocation& a) { return what.takes(a.tag) && a.can_leave(); });
          },
          [this, group](const Selection& what) {
            return node_.allocations.any(
                group, [&](const Allocation& a) { return what.takes(a.tag) && a.left(); });
          }};
}

void Broker::lose(RankId id, const std::string& why) {
  Rank* rank = node_.find_rank(id);
  if (rank == nullptr) return;
  if (rank->process_watch == 0 || !lives(rank->peer) || !shares(*rank)) return remove(id, why);
  GroupEntry& group = group_of(*rank);
  const std::string reason = why.empty() ? "its session ended" : "disconnected: " + why;
  const std::string text =
      label(*rank) + ": " + reason +
      ", but its process runs on with memory that other ranks have too; the group can be paused "
      "and resumed again when it has ended";
  spdlog::warn("group '{}': {}", group.machine.name(), text);
  events_.publish(group.machine.name(), "error", text);
  group.lost.insert(id);
  group.machine.lose(id, Clock::now());
  drive(group);
}

bool Broker::shares(const Rank& rank) const {
  const std::set<RankId>& lost = node_.groups.at(rank.group).lost;
  return node_.allocations.any(rank.group, [&](const Allocation& a) {
    return a.held_by(rank.id) && std::any_of(a.holders.begin(), a.holders.end(), [&](RankId other) {
             return other != rank.id && !lost.contains(other);
           });
  });
}

void Broker::process_ended(RankId id) {
  const Rank* rank = node_.find_rank(id);
  if (rank == nullptr) return;
  if (group_of(*rank).lost.contains(id)) return remove(id, "");
  sessions_.close(rank->session, "");  // a child that it forked may hold it open
}

void Broker::remove_harmless(GroupId id) {
  const auto it = node_.groups.find(id);
  if (it == node_.groups.end()) return;
  for (const RankId rank : it->second.lost)
    if (!shares(node_.ranks.at(rank))) return remove(rank, "");  // which looks for more
}

void Broker::remove(RankId id, const std::string& why) {
  Rank* rank = node_.find_rank(id);
  if (rank == nullptr) return;
  GroupEntry& group = group_of(*rank);
  const std::string name = label(*rank);
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
  drive(group);
  remove_harmless(group_id);
}

void Broker::forget_group(GroupId id) {
  GroupEntry& group = node_.groups.at(id);
  if (group.timer) loop_.cancel(*group.timer);
  spdlog::info("group '{}': gone with its last rank", group.machine.name());
  node_.groups.erase(id);
}

// ---- groups -------------------------------------------------------------------------------------

void Broker::drive(GroupEntry& group) {
  while (std::optional<Action> next = group.machine.next_action()) {
    meter_.enter(group.id, first_of_name(group.machine.phase()));
    std::visit([&](const auto& what) { act(group, what); }, *next);
  }
  if (group.machine.members().empty()) return forget_group(group.id);

  if (group.timer) loop_.cancel(*group.timer);
  group.timer.reset();
  if (const Time time = group.machine.wakeup(); time != kNever)
    group.timer = loop_.at(time, [this, id = group.id] {
      const auto it = node_.groups.find(id);
      if (it == node_.groups.end()) return;
      it->second.machine.tick(Clock::now());
      drive(it->second);
    });
}

void Broker::act(GroupEntry&, const action::Answer& answer) {
  if (const Rank* rank = node_.find_rank(answer.rank))
    sessions_.send(rank->session, reply_message(answer.seq, answer.status));
}

void Broker::act(GroupEntry& group, const action::StateChanged& changed) {
  events_.publish(group.machine.name(), "state", std::string(to_string(changed.state)),
                  to_proto(changed.state));
}

void Broker::act(GroupEntry& group, const action::Finished& finished) {
  action::Finished told = finished;
  Outcome& outcome = told.outcome;
  meter_.take(group.id, outcome.times);
  histograms_.add(outcome);
  if (outcome.status.ok()) {
    std::string times;
    for (const PhaseTime& t : outcome.times)
      times += fmt::format("{}{} {:.1f}", times.empty() ? "" : ", ", phase_name(t.phase),
                           static_cast<double>(to_us(t.time)) / 1000);
    const Task& task = outcome.task;
    spdlog::info("group '{}': {}{}{} took {:.1f} ms ({})", group.machine.name(), to_string(task.op),
                 task.selection.all() ? "" : " of ", to_string(task.selection),
                 static_cast<double>(to_us(outcome.total)) / 1000, times);
    if (task.op == Operation::kPause) {
      const Usage kept = node_.allocations.usage([&](const Allocation& a) {
        return a.group == group.id && task.selection.takes(a.tag) && !a.saved.empty();
      });
      spdlog::info("group '{}': {} of the pool hold the bytes of {}", group.machine.name(),
                   format_size(kept.saved), format_size(kept.allocated));
    }
    const Leftover stays = leftover(node_, group, task.selection);
    if (task.op == Operation::kPause && stays.pinned + stays.unbrokered > 0)
      spdlog::info(
          "group '{}': still on the devices: {} bytes pinned, known to a NIC; {} bytes not "
          "brokered",
          group.machine.name(), stays.pinned, stays.unbrokered);
  } else {
    spdlog::error("{}", outcome.status.text());
    events_.publish(group.machine.name(), "error", outcome.status.text());
  }
  operations_.run(group, told);
}

// ---- the control API ----------------------------------------------------------------------------

void Broker::start_operation(const Task& task, const std::string& group, Duration timeout,
                             const Operations::Observer& observer) {
  spdlog::info("group '{}': {} asked for", printable(group.c_str()), to_string(task.op));
  operations_.start(task, group, timeout, observer);
}

void Broker::swap(const std::string& out, const std::string& in, Duration timeout,
                  const Operations::Observer& observer) {
  spdlog::info("swap asked for: '{}' out, '{}' in", printable(out.c_str()), printable(in.c_str()));
  operations_.swap(out, in, timeout, observer);
}

Status Broker::set_policy(const std::string& name, const std::string& tag, v1::Policy policy,
                          v1::SaveForm form) {
  GroupEntry* group = node_.find_group(name);
  if (group == nullptr) return {Code::kNotFound, "no group '" + name + "'"};
  const bool sets_policy = policy == v1::POLICY_KEEP || policy == v1::POLICY_DISCARD;
  const std::optional<SaveForm> save_form = from_proto(form);
  if (!sets_policy && (policy != v1::POLICY_UNSPECIFIED || form == v1::SAVE_FORM_UNSPECIFIED))
    return {Code::kInvalidArgument, "a policy is keep or discard"};
  if (!save_form && form != v1::SAVE_FORM_UNSPECIFIED)
    return {Code::kInvalidArgument, "bytes are saved auto, dense or sparse"};
  if (tag.empty() || tag.size() > sizeof(amem_v1_Create::tag) - 1)
    return {Code::kInvalidArgument, "a tag has 1 to 31 characters"};
  if (tag == kNcclTag && policy == v1::POLICY_DISCARD)
    return {Code::kInvalidArgument,
            "the bytes of tag 'nccl' are always kept: it is not proven that NCCL can do without "
            "them, and NCCL itself saves them when it suspends"};
  if (group->machine.state() != GroupState::kRunning)
    return {Code::kFailedPrecondition, "group '" + name + "' is " +
                                           std::string(to_string(group->machine.state())) +
                                           "; a policy can be changed while the group is running"};
  if (node_.allocations.any(group->id,
                            [&](const Allocation& a) { return a.tag == tag && a.left(); }))
    return {Code::kFailedPrecondition, "tag '" + tag + "' of group '" + name +
                                           "' is paused; its policy can be changed once it is "
                                           "resumed"};
  if (sets_policy) {
    group->tag_discards[tag] = policy == v1::POLICY_DISCARD;
    spdlog::info("group '{}': tag '{}' is {} by a pause", name, printable(tag.c_str()),
                 policy == v1::POLICY_DISCARD ? "discarded" : "kept");
  }
  if (save_form) {
    group->tag_forms[tag] = *save_form;
    spdlog::info("group '{}': tag '{}' is saved {}", name, printable(tag.c_str()),
                 to_string(*save_form));
  }
  return {};
}

void Broker::status(v1::NodeStatus& status) const {
  report_node(node_, devices_, nvml_, began_, status);
  report_times(histograms_, status);
}

void Broker::groups(v1::ListGroupsResponse& response) const {
  for (const auto& [id, group] : node_.groups) report_group(node_, group, *response.add_groups());
}

Result<std::vector<v1::RankInfo>> Broker::ranks(const std::string& group) const {
  if (!group.empty() && node_.find_group(group) == nullptr)
    return Status(Code::kNotFound, "no group '" + group + "'");
  return report_ranks(node_, group);
}

Result<std::vector<v1::AllocationInfo>> Broker::allocations(const std::string& group) const {
  if (!group.empty() && node_.find_group(group) == nullptr)
    return Status(Code::kNotFound, "no group '" + group + "'");
  return report_allocations(node_, group);
}

}  // namespace amem
