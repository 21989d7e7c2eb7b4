#include "daemon/broker/rank_requests.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/utf8.h"
#include "daemon/base/ids.h"
#include "daemon/base/units.h"
#include "daemon/sessions/messages.h"

namespace amem {
namespace {

using std::chrono::milliseconds;

/// How long what a rank has freed may take to be closed by the holder.
constexpr Duration kCloseLimit = milliseconds(500);
/// How long a request waits for a restore. The rank itself waits no longer than 30 s.
constexpr Duration kRestoreLimit = std::chrono::seconds(20);
/// One for each thread of a rank that allocates.
constexpr std::size_t kMostCreates = 4096;

/// Parts of this size, and the rest. Nothing: there would be too many for one answer.
std::optional<std::vector<std::uint64_t>> in_parts(std::uint64_t size, std::uint64_t part) {
  const std::uint64_t rest = size % part;
  if (size / part + (rest > 0 ? 1 : 0) > kMaxMapsPerMessage) return std::nullopt;
  std::vector<std::uint64_t> sizes(size / part, part);
  if (rest > 0) sizes.push_back(rest);
  return sizes;
}

}  // namespace

RankRequests::RankRequests(const OperationContext& context, const DeviceNodes& nodes,
                           SessionServer& sessions, Operations& operations, Groups& groups,
                           Stages& stages)
    : context_(context),
      nodes_(nodes),
      node_(context.node),
      sessions_(sessions),
      operations_(operations),
      groups_(groups),
      stages_(stages) {}

void RankRequests::handle(Rank& rank, Packet& packet) {
  const Message& message = packet.message;
  switch (message.which_body) {
    case amem_v1_SessionMessage_device_nodes_tag: {
      const std::vector<DeviceUuid> proved = nodes_.proved(packet.fds);
      return rank.proved.insert(proved.begin(), proved.end());
    }
    case amem_v1_SessionMessage_create_tag:
      if (++rank.creating <= kMostCreates) return asked_to_create(rank, packet);
      return sessions_.close(rank.session, "it waits for " + std::to_string(kMostCreates) +
                                               " allocations and requests more");
    case amem_v1_SessionMessage_redeem_tag:
      return redeem(rank, message.seq, message.body.redeem);
    case amem_v1_SessionMessage_free_tag:
      return free(rank, message.body.free.id);
    case amem_v1_SessionMessage_await_closed_tag:
      return await_closed(rank, message.seq, message.body.await_closed);
    case amem_v1_SessionMessage_pin_tag:
      return pin(rank, message.body.pin);
    case amem_v1_SessionMessage_unpin_tag:
      return unpin(rank, message.body.unpin);
    case amem_v1_SessionMessage_group_request_tag:
      return group_request(rank, message.seq, message.body.group_request);
    case amem_v1_SessionMessage_withdraw_tag: {
      GroupEntry& group = node_.group_of(rank);
      group.machine.withdraw(rank.id, message.body.withdraw.request, Clock::now());
      return groups_.drive(group);
    }
    case amem_v1_SessionMessage_set_policy_tag:
      return set_policy(rank, message.seq, message.body.set_policy);
    case amem_v1_SessionMessage_cut_status_tag: {
      const amem_v1_CutStatus& status = message.body.cut_status;
      return operations_.answered(node_.group_of(rank), rank,
                                  event::CutStatus{rank.id, status.epoch, cut_report(status)});
    }
    case amem_v1_SessionMessage_phase_done_tag:
      return phase_done(rank, message.body.phase_done);
    case amem_v1_SessionMessage_made_tag:
      return made(rank, packet);
    case amem_v1_SessionMessage_copied_tag: {
      const amem_v1_Copied& copied = message.body.copied;
      return operations_.tell(
          node_.group_of(rank),
          event::Copied{rank.id, Epoch(copied.epoch, copied.wave), copied.bytes, copied.of});
    }
    case amem_v1_SessionMessage_saved_tag:
      if (Status s = context_.saved.stored(node_.group_of(rank), rank, message.body.saved); !s.ok())
        sessions_.close(rank.session, s.text());
      return;
    case amem_v1_SessionMessage_measured_tag:
      if (PauseOperation* pause = operations_.pause_of(rank.group);
          pause != nullptr && !pause->measured(rank.id, message.body.measured))
        sessions_.close(rank.session, "it reports zeros of memory that it was not told to look at");
      return;
    case amem_v1_SessionMessage_unbrokered_tag:
      return unbrokered(rank, message.body.unbrokered);
    case amem_v1_SessionMessage_segment_unmapped_tag: {
      const amem_v1_SegmentUnmapped& answer = message.body.segment_unmapped;
      return operations_.elastic().unmapped(rank.id, answer.number, answer.code == 0);
    }
    case amem_v1_SessionMessage_work_tag:
      return stages_.work(rank, message.body.work);
    case amem_v1_SessionMessage_unknown_calls_tag:
      return unknown_calls(rank, message.body.unknown_calls);
    default:
      sessions_.close(rank.session, "it sent message " + std::to_string(message.which_body) +
                                        ", which a rank must not send");
  }
}

Status RankRequests::may_allocate(const Rank& rank) const {
  const Group& machine = node_.groups.at(rank.group).machine;
  if (machine.may_allocate(rank.id)) return {};
  return {Code::kFailedPrecondition, "group '" + machine.name() + "' is " +
                                         std::string(to_string(machine.state())) +
                                         ". amemd serves memory when the group runs again"};
}

Status RankRequests::may_open(const Rank& rank, const DeviceUuid& device) const {
  if (!nodes_.guarded(device) || rank.proved.contains(device)) return {};
  return {Code::kPermissionDenied,
          "pid " + std::to_string(rank.peer.pid) + " of " + to_string(rank.peer.account->owner()) +
              " has not shown that it may open " + nodes_.path(device) + " (" + to_string(device) +
              "). A process proves it with a descriptor that is open for reading and writing. Give "
              "the process or its container this device, or set isolation.device_nodes"};
}

/// Charges for what it brings from now on, as it may wait.
void RankRequests::asked_to_create(Rank& rank, Packet& packet) {
  const auto request = std::make_shared<PendingCreate>(
      PendingCreate{.seq = packet.message.seq, .message = packet.message.body.create});
  if (!request->message.made) return create(rank, request);
  Result<Charge> files =
      node_.group_of(rank).account->take(Resource::kDescriptors, packet.fds.size());
  if (!files.ok()) {
    --rank.creating;
    return sessions_.send(rank.session, reply_message(request->seq, files.status()));
  }
  request->files = std::move(files).value();
  request->made = std::move(packet.fds);
  create(rank, request);
}

/// The rank is inside a call: until it is answered, a pause of its group waits in quiesce, too.
bool RankRequests::waits_for_restore(Rank& rank, const PendingCreatePtr& request) {
  const DeviceUuid device = make_uuid(request->message.device);
  if (!context_.restore_space.claimed(device) || !may_allocate(rank).ok()) return false;
  const Time now = Clock::now();
  const Duration limit = std::min(kRestoreLimit, context_.create_limit);
  if (request->until == Time{}) request->until = now + limit;
  if (now >= request->until) {
    request->tries = std::size(kSpaceRetryDelays);
    not_created(rank, request,
                {Code::kResourceExhausted, "another group's processes are being restored on " +
                                               to_string(device) + ", and have not been for " +
                                               format_duration(limit)});
    return true;
  }
  context_.loop.at(now + RestoreSpace::kPollInterval,
                   rank.scope.bind([this, &rank, request] { create(rank, request); }));
  return true;
}

/// Where there is little space the block is one allocation, which the driver refuses at once. Of
/// parts it would make nearly all before it refuses one.
void RankRequests::create(Rank& rank, const PendingCreatePtr& request) {
  if (waits_for_restore(rank, request)) return;
  const amem_v1_Create& message = request->message;
  if (message.part == 0 || message.made) return create_in({message.size}, rank, request);
  const auto sizes = in_parts(message.size, message.part);
  if (!sizes)
    return not_created(
        rank, request,
        {Code::kInvalidArgument, format_size(message.size) + " in parts of " +
                                     format_size(message.part) + " are more than " +
                                     std::to_string(kMaxMapsPerMessage) + " allocations"});
  const DeviceUuid device = make_uuid(message.device);
  context_.workers.look(
      {device}, rank.scope.bind([this, &rank, request, device, sizes](const Workers::Uses& uses) {
        const std::uint64_t size = request->message.size;
        const auto use = uses.find(device);
        const bool spacious = use == uses.end() || use->second.free >= size;
        create_in(spacious ? *sizes : std::vector{size}, rank, request);
      }));
}

void RankRequests::create_in(const std::vector<std::uint64_t>& sizes, Rank& rank,
                             const PendingCreatePtr& request) {
  if (const Status status = admit(rank, *request, sizes); !status.ok())
    return not_created(rank, request, status);
  const amem_v1_Create& message = request->message;
  const Device& device = *context_.devices.find(make_uuid(message.device));
  const auto answer = rank.scope.bind(
      [this, &rank, request](Workers::AllMade made) { created(rank, request, std::move(made)); });
  if (!message.made) {
    std::vector<Workers::Wish> wishes;
    for (const std::uint64_t size : sizes) wishes.push_back({size, message.gpu_direct_rdma});
    return context_.workers.create(device, std::move(wishes), context_.create_limit, answer);
  }
  std::vector<Workers::Brought> brought;
  brought.push_back({message.size, std::move(request->made.front())});
  context_.workers.take(device, std::move(brought), context_.create_limit, answer);
}

Status RankRequests::admit(const Rank& rank, PendingCreate& request,
                           const std::vector<std::uint64_t>& sizes) {
  if (Status status = may_allocate(rank); !status.ok()) return status;
  const DeviceUuid uuid = make_uuid(request.message.device);
  if (context_.devices.find(uuid) == nullptr)
    return {Code::kInvalidArgument, "the broker has no device " + to_string(uuid)};
  if (Status status = may_open(rank, uuid); !status.ok()) return status;
  if (request.message.made && request.made.size() != 1)
    return {Code::kInvalidArgument,
            "memory that the rank has made came with " + std::to_string(request.made.size()) +
                " descriptors instead of one. The rank or amemd may have too many files open: "
                "raise the limit (ulimit -n, LimitNOFILE)"};
  if (node_.allocations.too_many_tags(rank.group, printable(request.message.tag)))
    return {Code::kResourceExhausted,
            "the memory of group '" + node_.group_of(rank).machine.name() + "' has " +
                std::to_string(Allocations::kMostTags) +
                " tags, which is the limit. Free all memory of a tag first, or reuse tags"};
  Account& account = *node_.group_of(rank).account;
  for (const std::uint64_t size : sizes) {
    Result<Charge> entry = account.take(Resource::kAllocations, 1);
    if (!entry.ok()) return entry.status();
    Result<Charge> memory = context_.workers.charge(account, size);
    if (!memory.ok()) return memory.status();
    request.parts.push_back({size, std::move(entry).value(), std::move(memory).value()});
  }
  return {};
}

void RankRequests::created(Rank& rank, const PendingCreatePtr& request, Workers::AllMade made) {
  // A pause may have begun meanwhile.
  Status status = may_allocate(rank);
  for (const auto& each : made)
    if (status.ok()) status = each.status();
  if (!status.ok()) {
    made.clear();  // what there is, before it is tried again
    return not_created(rank, request, status);
  }
  const std::size_t count = made.size();
  const Result<Allocation*> entered = enter(rank, *request, std::move(made));
  if (!entered.ok()) return not_created(rank, request, entered.status());
  --rank.creating;
  std::vector<const Allocation*> all;
  for (AllocationId id = entered.value()->id; all.size() < count; ++id)
    all.push_back(node_.allocations.find(id));
  // The rank has what it has made itself.
  std::vector<SharedFd> fds;
  for (const Allocation* a : all)
    if (a->maker == 0) fds.push_back(a->fd);
  sessions_.send(rank.session, created_message(request->seq, *all.front(), count), std::move(fds));
  for (const Allocation* a : all) let_reach_pool(*a);
}

void RankRequests::not_created(Rank& rank, const PendingCreatePtr& request, const Status& why) {
  request->parts.clear();
  GroupEntry& group = node_.group_of(rank);
  if (why.code() == Code::kResourceExhausted && request->tries < std::size(kSpaceRetryDelays)) {
    // Who has reached a quota is helped by what its own ranks keep.
    Amounts all = of_device_memory(request->message.size);
    all[Resource::kAllocations] = 1;
    if (request->tries == 0) context_.outbox.trim(*group.account, !group.account->has_space(all));
    context_.loop.at(Clock::now() + kSpaceRetryDelays[request->tries++],
                     rank.scope.bind([this, &rank, request] { create(rank, request); }));
    return;
  }
  --rank.creating;
  if (why.code() == Code::kPermissionDenied)
    group.refusals_log().warn("group '{}': amemd refuses to create memory: {}",
                              group.machine.name(), why.text());
  spdlog::debug("group '{}': {}: amemd refuses to create memory: {}", group.machine.name(),
                node_.label(rank), why.text());
  sessions_.send(rank.session, reply_message(request->seq, why));
}

void RankRequests::let_reach_pool(const Allocation& a) {
  if (a.region == RegionPolicy::kDiscard) return;
  const Rank& keeper = node_.ranks.at(a.keeper());
  node_.pool_of(keeper).reach.add_need(keeper.id, context_.devices.numa_node(a.device), a.size);
  context_.outbox.extend_reach(keeper.id);
}

Result<Allocation*> RankRequests::enter(Rank& rank, PendingCreate& request, Workers::AllMade made) {
  Result<Token> token = random_token();
  if (!token.ok()) return token.status();
  const amem_v1_Create& message = request.message;
  Record& record = node_.records.record();
  std::vector<Allocation*> entered;
  for (std::size_t i = 0; i < made.size(); ++i) {
    PendingCreate::Part& part = request.parts[i];
    Allocation a;
    a.group = rank.group;
    a.token = token.value();
    a.size = part.size;
    a.device = make_uuid(message.device);
    a.gpu_direct_rdma = message.gpu_direct_rdma;
    a.tag = printable(message.tag);
    a.region = region_policy(message.policy);
    a.sharers = {rank.id};
    a.maker = message.made ? rank.id : 0;
    a.charge = std::move(part.entry);
    a.fd = charged(std::move(made[i].value().fd), std::move(part.memory));
    a.sharers_known = true;
    entered.push_back(&node_.allocations.add(std::move(a)));
  }
  Status status = node_.records.used_allocation(entered.back()->id);
  for (Allocation* each : entered)
    each->holder_entry =
        record.hold(HolderKind::kMemory, each->id, each->fd, context_.devices.lane(each->device));
  record.flush();
  for (Allocation* each : entered)
    if (status.ok()) status = node_.records.write(*each);
  if (status.ok()) return entered.front();
  for (const Allocation* each : entered) (void)node_.allocations.free(each->id, rank.id);
  return status;
}

void RankRequests::redeem(Rank& rank, std::uint64_t seq, const amem_v1_Redeem& message) {
  if (Status status = may_allocate(rank); !status.ok()) {
    sessions_.send(rank.session, reply_message(seq, status));
    return;
  }
  Token token{};
  std::memcpy(token.data(), message.token, token.size());
  const Allocation* known = node_.allocations.find(message.id);
  const bool guest = known != nullptr && known->group != rank.group;
  const Result<Allocation*> redeemed = share(rank, message.id, token);
  if (!redeemed.ok()) {
    node_.group_of(rank).refusals_log().warn("group '{}': {}: {}",
                                             node_.group_of(rank).machine.name(), node_.label(rank),
                                             redeemed.status().text());
    sessions_.send(rank.session, reply_message(seq, redeemed.status()));
    return;
  }
  Allocation& a = *redeemed.value();
  if (const Status status = node_.records.write(a); !status.ok()) {
    free(rank, a.id);
    sessions_.send(rank.session, reply_message(seq, status));
    return;
  }
  sessions_.send(rank.session, redeemed_message(seq, a, guest), {a.fd});
}

Result<Allocation*> RankRequests::share(const Rank& rank, AllocationId id, const Token& token) {
  const GroupEntry& group = node_.group_of(rank);
  const Allocation* const known = node_.allocations.find(id);
  // It is told nothing of memory that is not its to redeem, and nothing of the device.
  const bool its =
      known != nullptr && known->token == token && known->charge.account() == group.account;
  if (its)
    if (Status status = may_open(rank, known->device); !status.ok()) return status;
  if (known != nullptr && known->group != rank.group) return open(rank, *known, token);
  // Other ranks pause it on their own: this one runs.
  if (its && leaves(*known) && !known->shared_by(rank.id))
    return Status(Code::kFailedPrecondition, "allocation " + std::to_string(id) +
                                                 " is being paused with its tag '" + known->tag +
                                                 "'. Resume this tag first");
  // What other ranks resume returns as theirs: this one shares it afterwards.
  const bool loaded = group.machine.opens() && !group.machine.aside(rank.id);
  return node_.allocations.redeem(id, token, rank.group, rank.id, loaded);
}

bool RankRequests::leaves(const Allocation& a) const {
  const auto group = node_.groups.find(a.group);
  if (group == node_.groups.end()) return false;
  const PauseOperation* const pause = operations_.pause_of(a.group);
  return (pause != nullptr && pause->takes(a)) ||
         will_take(group->second.machine, a.tag, a.sharers);
}

Result<Allocation*> RankRequests::open(const Rank& rank, const Allocation& a, const Token& token) {
  const Account& own = *node_.group_of(rank).account;
  if (a.charge.account().get() != &own) {
    node_.group_of(rank).refusals_log().warn(
        "allocation {} belongs to {}, but this rank belongs to {}. Groups share memory only with "
        "groups of the same owner",
        a.id, to_string(a.charge.account()->owner()), to_string(own.owner()));
    return freed(a.id);  // whose it is, and that it is, is not theirs to know
  }
  bool loaded = false;
  if (const auto owner = node_.groups.find(a.group); owner != node_.groups.end()) {
    const GroupEntry& group = owner->second;
    if (leaves(a) && !a.opened_by(rank.id))
      return Status(Code::kFailedPrecondition,
                    "allocation " + std::to_string(a.id) + " of group '" + group.machine.name() +
                        "' is being paused. A guest can open it after the group resumes");
    loaded = group.machine.opens();
  }
  return node_.allocations.open(a.id, token, {rank.id, rank.group}, loaded);
}

void RankRequests::free(Rank& rank, AllocationId id) {
  GroupEntry& group = node_.group_of(rank);
  const Allocation* a = node_.allocations.find(id);
  const bool guest = a != nullptr && a->opened_by(rank.id);
  const bool keeper = a != nullptr && a->shared_by(rank.id) && a->keeper() == rank.id;
  const bool kept = keeper && a->region != RegionPolicy::kDiscard;
  if (kept)
    node_.pool_of(rank).reach.release(rank.id, context_.devices.numa_node(a->device), a->size);
  if (a != nullptr && a->resident()) rank.freed.insert(a->device);
  Result<std::optional<Allocation>> freed = node_.allocations.free(id, rank.id);
  if (!freed.ok()) {
    node_.group_of(rank).refusals_log().warn("group '{}': {}: free: {}", group.machine.name(),
                                             node_.label(rank), freed.status().text());
    return;
  }
  if (std::optional<Allocation>& unshared = freed.value(); unshared.has_value())
    context_.saved.give_back(*unshared);
  else if (a->group == kNoGroup)
    context_.saved.give_back(*node_.allocations.find(id));  // of no group's resume any more
  if (guest || freed.value().has_value() || a->opened()) operations_.look_at_guests();
  if (guest) return;
  if (freed.value().has_value() || a->group == kNoGroup) return;  // nobody else holds it
  if (keeper)
    context_.saved.forget_retained(*a);  // the next sharer is its keeper now, without hashes
  if (kept) let_reach_pool(*a);
  if (const ResumeOperation* resume = operations_.resume_of(group.id)) {
    const auto loader = resume->loaders().find(id);
    if (loader != resume->loaders().end() && loader->second == rank.id)
      operations_.tell(group, event::FreedUnloaded{rank.id});
  }
}

/// Memory is free once its descriptor is closed on its device's thread, and by the holder.
void RankRequests::await_closed(Rank& rank, std::uint64_t seq, const amem_v1_AwaitClosed& message) {
  std::set<DeviceUuid> devices = std::exchange(rank.freed, {});
  if (message.close_spares) devices.merge(context_.workers.close_spares_on(rank.devices));
  std::set<std::uint32_t> lanes;
  for (const DeviceUuid& device : devices) lanes.insert(context_.devices.lane(device));
  const DeviceUuid asked = make_uuid(message.device);
  const auto answer = rank.scope.bind([this, &rank, seq, asked](bool) {
    sessions_.send(rank.session, all_closed_message(seq, context_.workers.spares().bytes(asked)));
  });
  context_.workers.await_closed(devices, [this, lanes, answer] {
    node_.records.record().await_closed(lanes, kCloseLimit, answer);
  });
}

void RankRequests::pin(Rank& rank, const amem_v1_Pin& message) {
  const AllocationId id = message.id;
  const GroupEntry& group = node_.group_of(rank);
  Allocation* a = node_.allocations.find(id);
  if (a != nullptr && a->opened_by(rank.id)) return;  // stays where it is while that is so
  Status status;
  // A rank whose gate is open again may ask before the others have opened theirs.
  const bool back = group.machine.opens();
  if (a != nullptr && (!a->resident() || (a->paused && !a->stayed && !back)))
    status = {Code::kFailedPrecondition, "allocation " + std::to_string(id) +
                                             " is not on its device, so it cannot be pinned now"};
  else
    status = node_.allocations.pin(id, {rank.id, pin_reason(message.reason)});
  if (!status.ok()) {
    node_.group_of(rank).refusals_log().warn("group '{}': {}: pin: {}", group.machine.name(),
                                             node_.label(rank), status.text());
    return;
  }
  context_.saved.give_back(*a);  // a pause under way leaves it where it is
  if (const PauseOperation* pause = operations_.pause_of(group.id); pause && pause->takes(*a)) {
    node_.allocations.move(*a, [&] { a->stayed = true; });
    (void)node_.records.write_saved(*a);
  }
}

void RankRequests::unpin(Rank& rank, const amem_v1_Unpin& message) {
  GroupEntry& group = node_.group_of(rank);
  if (const Allocation* a = node_.allocations.find(message.id); a && a->opened_by(rank.id)) return;
  // A pause under way has left it out of what it saves, so its bytes would be lost.
  const bool under_way = !group.machine.may_allocate(rank.id);
  const Status status =
      under_way ? Status(Code::kFailedPrecondition,
                         "allocation " + std::to_string(message.id) +
                             " stays pinned, because a pause has found it pinned")
                : node_.allocations.unpin(message.id, {rank.id, pin_reason(message.reason)});
  if (!status.ok())
    group.refusals_log().warn("group '{}': {}: unpin: {}", group.machine.name(), node_.label(rank),
                              status.text());
}

void RankRequests::group_request(Rank& rank, std::uint64_t seq,
                                 const amem_v1_GroupRequest& message) {
  if (message.op != amem_v1_GroupOp_GROUP_OP_PAUSE &&
      message.op != amem_v1_GroupOp_GROUP_OP_RESUME) {
    sessions_.send(rank.session,
                   reply_message(seq, {Code::kInvalidArgument,
                                       "a group request must ask for a pause or a resume"}));
    return;
  }
  GroupEntry& group = node_.group_of(rank);
  Task task(message.op == amem_v1_GroupOp_GROUP_OP_PAUSE ? Operation::kPause : Operation::kResume);
  for (pb_size_t i = 0; i < message.tags_count; ++i)
    task.selection.tags.insert(printable(message.tags[i]));
  task.selection.except = message.except;
  for (pb_size_t i = 0; i < message.discard_count; ++i)
    task.discard.insert(printable(message.discard[i]));
  if (message.guests == amem_v1_GuestRule_GUEST_RULE_PIN) task.guests = GuestPolicy::kPin;
  if (message.guests == amem_v1_GuestRule_GUEST_RULE_REFUSE) task.guests = GuestPolicy::kRefuse;
  task.deep = message.deep && task.op == Operation::kPause;
  task.force = message.force;
  Status status = check_tags(node_.allocations, group.id, task);
  // It has been looked at. Ranks that ask for the same need not agree on it.
  task.force = false;
  if (message.except && message.tags_count == 0)
    status = {Code::kInvalidArgument, "the request excepts no tag. Name the tags"};
  RankSet together;
  together.name = printable(message.set);
  together.count = message.set_ranks;
  if (together.name.empty() != (together.count == 0) ||
      (!together.name.empty() && task.selection.all()))
    status = {
        Code::kInvalidArgument,
        "a set of ranks needs a name, a number of ranks, and tags. A pause of everything is of "
        "all ranks of the group"};
  if (status.ok()) status = operations_.allows(task);
  if (status.ok()) status = operations_.refusal();
  if (!status.ok()) {
    sessions_.send(rank.session, reply_message(seq, status));
    return;
  }
  group.machine.request(rank.id, seq, task, std::chrono::milliseconds(message.timeout_ms),
                        Clock::now(), together);
  groups_.drive(group);
}

void RankRequests::set_policy(Rank& rank, std::uint64_t seq, const amem_v1_SetPolicy& message) {
  GroupEntry& group = node_.group_of(rank);
  const std::string tag = printable(message.tag);
  const RegionPolicy policy = region_policy(message.policy);
  const bool discard = policy == RegionPolicy::kDiscard;
  const auto change = [&](GroupEntry& changed) { changed.rank_discards[tag] = discard; };
  const Status status =
      policy == RegionPolicy::kNone
          ? Status(Code::kInvalidArgument, "the policy must be keep or discard")
          : groups_.set_policy(group, tag, tag_drop(discard, message.force), change);
  if (status.ok())
    group.log().info("group '{}': {}: a pause {} tag '{}'", group.machine.name(), node_.label(rank),
                     discard ? "discards" : "keeps", tag);
  sessions_.send(rank.session, reply_message(seq, status));
}

void RankRequests::unbrokered(Rank& rank, const amem_v1_Unbrokered& message) {
  rank.unbrokered.clear();
  for (pb_size_t i = 0; i < message.kinds_count; ++i) {
    const amem_v1_Unbrokered_Kind& kind = message.kinds[i];
    rank.unbrokered.push_back(
        {make_uuid(kind.device), printable(kind.kind), kind.bytes, kind.count, kind.host});
  }
}

void RankRequests::unknown_calls(Rank& rank, const amem_v1_UnknownCalls& message) {
  const auto fate_name = [](amem_v1_UnknownCalls_Fate fate) {
    return fate == amem_v1_UnknownCalls_Fate_FATE_LISTED   ? "listed"
           : fate == amem_v1_UnknownCalls_Fate_FATE_LINKED ? "linked"
                                                           : "hidden";
  };
  std::vector<UnknownCall>& known = rank.unknown_calls;
  const bool first = known.empty();
  std::uint64_t left_out = 0;
  for (pb_size_t i = 0; i < message.calls_count; ++i) {
    const amem_v1_UnknownCalls_Call& call = message.calls[i];
    UnknownCall told{printable(call.name), fate_name(call.fate), printable(call.library)};
    const auto before = std::find_if(known.begin(), known.end(), [&](const UnknownCall& each) {
      return each.name == told.name;
    });
    if (before != known.end())
      *before = std::move(told);
    else if (known.size() < kMostUnknownCalls)
      known.push_back(std::move(told));
    else
      ++left_out;
  }
  GroupEntry& group = node_.group_of(rank);
  if (first && !known.empty())
    group.log().warn("group '{}': {} asks for driver calls that its shim does not know, such as {}",
                     group.machine.name(), node_.label(rank), known.front().name);
  if (left_out == 0 || std::exchange(rank.unknown_calls_full, true)) return;
  left_out += message.more;  // in the messages that follow are new names, too
  group.log().warn(
      "group '{}': {} reports more unknown driver calls than the {} that amemd keeps for a rank. "
      "amemd does not keep {} of them",
      group.machine.name(), node_.label(rank), kMostUnknownCalls, left_out);
}

void RankRequests::phase_done(Rank& rank, const amem_v1_PhaseDone& message) {
  const std::optional<RankPhase> phase = rank_phase_of(message.phase);
  if (!phase)
    return sessions_.close(rank.session, "it answered phase " + std::to_string(message.phase) +
                                             ", which a rank must not answer");
  const Status status = phase_status(message);
  if (*phase == RankPhase::kQuiet && status.ok())
    return sessions_.close(rank.session,
                           "its PhaseDone says that it is quiet, but its CutStatus does not");
  operations_.answered(node_.group_of(rank), rank,
                       {rank.id, Epoch(message.epoch, message.wave), *phase, status, message.bytes,
                        command_times(message.spent)});
}

void RankRequests::made(const Rank& rank, Packet& packet) {
  ResumeOperation* const resume = operations_.resume_of(rank.group);
  if (resume == nullptr) return;  // it has ended: what was made for it goes with the packet
  resume->made(rank.id, packet.message.body.made, std::move(packet.fds));
  groups_.drive(node_.group_of(rank));
}

}  // namespace amem
