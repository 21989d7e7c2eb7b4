#include "daemon/broker/rank_requests.h"

#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "daemon/sessions/messages.h"

namespace amem {
namespace {

using std::chrono::milliseconds;

/// When to look for device memory again. A Free that was sent before the Create may be read after
/// it, and ranks keep a little of what their programs have freed.
constexpr Duration kAgainAfter[] = {milliseconds(5), milliseconds(20), milliseconds(50)};
constexpr Duration kTrimInterval = milliseconds(100);

Result<Token> random_token() {
  Token token{};
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    return errno_status(Code::kInternal, "getrandom", errno);
  return token;
}

}  // namespace

RankRequests::RankRequests(const Means& means, SessionServer& sessions, Operations& operations,
                           Groups& groups)
    : means_(means),
      node_(means.node),
      sessions_(sessions),
      operations_(operations),
      groups_(groups),
      complaints_(means.loop, "requests of ranks that could not be served") {}

void RankRequests::handle(Rank& rank, const Message& message) {
  switch (message.which_body) {
    case amem_v1_SessionMessage_create_tag:
      return create(rank, message.seq, message.body.create);
    case amem_v1_SessionMessage_redeem_tag:
      return redeem(rank, message.seq, message.body.redeem);
    case amem_v1_SessionMessage_free_tag:
      return free(rank, message.body.free.id);
    case amem_v1_SessionMessage_settle_tag:
      return sessions_.send(rank.session, reply_message(message.seq, {}));
    case amem_v1_SessionMessage_pin_tag:
      return pin(rank, message.body.pin.id);
    case amem_v1_SessionMessage_group_request_tag:
      return group_request(rank, message.seq, message.body.group_request);
    case amem_v1_SessionMessage_set_policy_tag:
      return set_policy(rank, message.seq, message.body.set_policy);
    case amem_v1_SessionMessage_cut_status_tag: {
      GroupEntry& group = node_.group_of(rank);
      const amem_v1_CutStatus& status = message.body.cut_status;
      group.machine.tell(event::CutStatus{rank.id, status.epoch, cut_report(status)}, Clock::now());
      return groups_.drive(group);
    }
    case amem_v1_SessionMessage_phase_done_tag:
      return phase_done(rank, message.body.phase_done);
    case amem_v1_SessionMessage_saved_tag:
      if (Status s = means_.saved.stored(node_.group_of(rank), rank, message.body.saved); !s.ok())
        sessions_.close(rank.session, s.text());
      return;
    case amem_v1_SessionMessage_unbrokered_tag:
      return unbrokered(rank, message.body.unbrokered);
    default:
      sessions_.close(rank.session, "it sent message " + std::to_string(message.which_body) +
                                        ", which is not a rank's to send");
  }
}

Status RankRequests::may_allocate(const Rank& rank) const {
  const Group& machine = node_.groups.at(rank.group).machine;
  if (machine.may_allocate(rank.id)) return {};
  return {Code::kFailedPrecondition, "group '" + machine.name() + "' is " +
                                         std::string(to_string(machine.state())) +
                                         "; memory is served when it runs again"};
}

void RankRequests::create(Rank& rank, std::uint64_t seq, const amem_v1_Create& message,
                          std::size_t tries) {
  Result<Allocation*> made = make(rank, message);
  if (made.status().code() == Code::kResourceExhausted && tries < std::size(kAgainAfter)) {
    if (tries == 0) trim();
    means_.loop.at(Clock::now() + kAgainAfter[tries], [this, id = rank.id, seq, message, tries] {
      if (Rank* again = node_.find_rank(id)) create(*again, seq, message, tries + 1);
    });
    return;
  }
  if (!made.ok()) {
    spdlog::debug("group '{}': {}: create refused: {}", node_.group_of(rank).machine.name(),
                  node_.label(rank), made.status().text());
    sessions_.send(rank.session, reply_message(seq, made.status()));
    return;
  }
  const Allocation& a = *made.value();
  sessions_.send(rank.session, created_message(seq, a), {a.fd});
  let_reach_pool(a);
}

void RankRequests::trim() {
  const Time now = Clock::now();
  if (now - trimmed_ < kTrimInterval) return;  // a rank that asks for too much, again and again
  trimmed_ = now;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_trim_tag;
  for (const auto& [id, rank] : node_.ranks) sessions_.send(rank.session, message);
}

void RankRequests::let_reach_pool(const Allocation& a) {
  if (a.region == RegionPolicy::kDiscard) return;
  node_.reach.keep(a.keeper(), means_.devices.numa_node(a.device), a.size);
  means_.outbox.give_segments(a.keeper(), node_.reach.extend(a.keeper()));
}

Result<Allocation*> RankRequests::make(Rank& rank, const amem_v1_Create& message) {
  if (Status status = may_allocate(rank); !status.ok()) return status;
  const DeviceUuid uuid = make_uuid(message.device);
  const Device* device = means_.devices.find(uuid);
  if (device == nullptr)
    return Status(Code::kInvalidArgument, "the broker sees no device " + to_string(uuid));
  Result<CreatedMemory> made =
      means_.devices.create(*device, message.size, message.gpu_direct_rdma);
  if (!made.ok()) return made.status();
  Result<Token> token = random_token();
  if (!token.ok()) return token.status();
  Allocation a;
  a.group = rank.group;
  a.token = token.value();
  a.size = message.size;
  a.device = uuid;
  a.gpu_direct_rdma = message.gpu_direct_rdma;
  a.tag = printable(message.tag);
  a.region = region_policy(message.policy);
  a.holders = {rank.id};
  a.fd = std::make_shared<const Fd>(std::move(made.value().fd));
  return &node_.allocations.add(std::move(a));
}

void RankRequests::redeem(Rank& rank, std::uint64_t seq, const amem_v1_Redeem& message) {
  if (Status status = may_allocate(rank); !status.ok()) {
    sessions_.send(rank.session, reply_message(seq, status));
    return;
  }
  Token token{};
  std::memcpy(token.data(), message.token, token.size());
  const bool loaded = node_.group_of(rank).machine.phase() == Phase::kOpen;
  Result<Allocation*> redeemed =
      node_.allocations.redeem(message.id, token, rank.group, rank.id, loaded);
  if (!redeemed.ok()) {
    complaints_.warn("group '{}': {}: {}", node_.group_of(rank).machine.name(), node_.label(rank),
                     redeemed.status().text());
    sessions_.send(rank.session, reply_message(seq, redeemed.status()));
    return;
  }
  const Allocation& a = *redeemed.value();
  sessions_.send(rank.session, redeemed_message(seq, a), {a.fd});
}

void RankRequests::free(Rank& rank, AllocationId id) {
  GroupEntry& group = node_.group_of(rank);
  const Allocation* a = node_.allocations.find(id);
  const bool kept = a != nullptr && a->keeper() == rank.id && a->region != RegionPolicy::kDiscard;
  if (kept) node_.reach.let_go(rank.id, means_.devices.numa_node(a->device), a->size);
  Result<std::optional<Allocation>> freed = node_.allocations.free(id, rank.id);
  if (!freed.ok()) {
    complaints_.warn("group '{}': {}: free: {}", group.machine.name(), node_.label(rank),
                     freed.status().text());
    return;
  }
  if (std::optional<Allocation>& orphan = freed.value(); orphan.has_value())
    return means_.saved.give_back(*orphan);
  if (kept) let_reach_pool(*a);  // the next holder is its keeper now
  if (const ResumeOperation* resume = operations_.resume_of(group.id)) {
    const auto loader = resume->loaders().find(id);
    if (loader != resume->loaders().end() && loader->second == rank.id) {
      group.machine.tell(event::FreedUnloaded{rank.id}, Clock::now());
      groups_.drive(group);
    }
  }
}

void RankRequests::pin(Rank& rank, AllocationId id) {
  const GroupEntry& group = node_.group_of(rank);
  Allocation* a = node_.allocations.find(id);
  Status status;
  // A rank whose gate is open again may ask before the others have opened theirs.
  const bool back = group.machine.phase() == Phase::kOpen;
  if (a != nullptr && (!a->resident() || (a->away && !a->stayed && !back)))
    status = {Code::kFailedPrecondition, "allocation " + std::to_string(id) +
                                             " is not on its device; it cannot be pinned now"};
  else
    status = node_.allocations.pin(id, rank.id);
  if (!status.ok()) {
    complaints_.warn("group '{}': {}: pin: {}", group.machine.name(), node_.label(rank),
                     status.text());
    return;
  }
  means_.saved.give_back(*a);  // a pause under way leaves it where it is
}

void RankRequests::group_request(Rank& rank, std::uint64_t seq,
                                 const amem_v1_GroupRequest& message) {
  if (message.op != amem_v1_GroupOp_GROUP_OP_PAUSE &&
      message.op != amem_v1_GroupOp_GROUP_OP_RESUME) {
    sessions_.send(rank.session,
                   reply_message(seq, {Code::kInvalidArgument,
                                       "a group request asks for a pause or a resume"}));
    return;
  }
  GroupEntry& group = node_.group_of(rank);
  Task task(message.op == amem_v1_GroupOp_GROUP_OP_PAUSE ? Operation::kPause : Operation::kResume);
  for (pb_size_t i = 0; i < message.tags_count; ++i)
    task.selection.tags.insert(printable(message.tags[i]));
  task.selection.except = message.except;
  for (pb_size_t i = 0; i < message.discard_count; ++i)
    task.discard.insert(printable(message.discard[i]));
  Status status = check_tags(node_.allocations, group.id, task);
  if (message.except && message.tags_count == 0)
    status = {Code::kInvalidArgument, "all but which tags? None is given"};
  if (!status.ok()) {
    sessions_.send(rank.session, reply_message(seq, status));
    return;
  }
  group.machine.request(rank.id, seq, task, std::chrono::milliseconds(message.timeout_ms),
                        Clock::now());
  groups_.drive(group);
}

void RankRequests::set_policy(Rank& rank, std::uint64_t seq, const amem_v1_SetPolicy& message) {
  GroupEntry& group = node_.group_of(rank);
  const std::string tag = printable(message.tag);
  const RegionPolicy policy = region_policy(message.policy);
  const bool discard = policy == RegionPolicy::kDiscard;
  Status status = policy == RegionPolicy::kNone
                      ? Status(Code::kInvalidArgument, "a policy is keep or discard")
                      : groups_.may_set_policy(group, tag, discard);
  if (status.ok()) {
    group.rank_discards[tag] = discard;
    spdlog::info("group '{}': {}: tag '{}' is {} by a pause", group.machine.name(),
                 node_.label(rank), tag, discard ? "discarded" : "kept");
  }
  sessions_.send(rank.session, reply_message(seq, status));
}

void RankRequests::unbrokered(Rank& rank, const amem_v1_Unbrokered& message) {
  rank.unbrokered.clear();
  for (pb_size_t i = 0; i < message.kinds_count; ++i) {
    const amem_v1_Unbrokered_Kind& kind = message.kinds[i];
    rank.unbrokered.push_back(
        {make_uuid(kind.device), printable(kind.kind), kind.bytes, kind.count});
  }
}

void RankRequests::phase_done(Rank& rank, const amem_v1_PhaseDone& message) {
  const std::optional<Work> work = answered_work(message.phase);
  if (!work)
    return sessions_.close(rank.session, "it answered phase " + std::to_string(message.phase) +
                                             ", which is not a rank's to answer");
  GroupEntry& group = node_.group_of(rank);
  const Status status = phase_status(message);
  const Epoch epoch(message.epoch, message.wave);
  means_.saved.answered(rank, epoch, *work);
  if (PauseOperation* pause = operations_.pause_of(group.id);
      pause != nullptr && *work == Work::kSave && epoch == group.machine.epoch() && !status.ok())
    pause->save_failed(rank.id);
  if (!status.ok() && (*work == Work::kSave || *work == Work::kLoad)) node_.reach.doubt(rank.id);
  group.machine.tell(
      event::PhaseDone{rank.id, epoch, *work, status, message.bytes, rank_work(message.spent)},
      Clock::now());
  groups_.drive(group);
}

}  // namespace amem
