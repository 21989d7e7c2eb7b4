#include "daemon/operations/resume_operation.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/plans/guests.h"
#include "daemon/plans/handing_on.h"

namespace amem {
namespace {

/// How long what ranks have freed may take to be closed by the holder.
constexpr Duration kSpaceWithin = std::chrono::seconds(1);

}  // namespace

ResumeOperation::ResumeOperation(const OperationContext& context, GroupEntry& group,
                                 const Task& task, Membership of)
    : GroupOperation(context, group, task, std::move(of)),
      alone_{{}, {group.id}},
      exchange_(of_.command != nullptr ? of_.command->exchange() : alone_) {
  exchange_.resumes.push_back(this);
}

ResumeOperation::~ResumeOperation() {
  std::erase(exchange_.resumes, this);
  for (const auto& [number, asked] : asked_) context_.loop.cancel(asked.late);
}

void ResumeOperation::carry_out(const Action& action) {
  std::visit(
      [this](const auto& what) {
        if constexpr (requires { run(what); }) run(what);
      },
      action);
}

// ---- the processes of a deep group --------------------------------------------------------------

void ResumeOperation::run(const action::Restore& restore) {
  if (calls_go_on([this, restore] { run(restore); })) return;
  const auto space =
      later([this, by = restore.by](const Space& answer) { make_space_for_restore(by, answer); });
  auto& calls = group_.process_calls;  // without processes the operation may end at once
  calls = context_.evictor.restore(processes_of(restore.ranks), context_.evict_limit, space,
                                   later([this](const auto& status) {
                                     if (status.ok()) group_.restore_needs.clear();
                                     group_.machine.tell(event::Restored{status}, Clock::now());
                                   }));
}

void ResumeOperation::make_space_for_restore(Time by, const Space& answer) {
  try_restore_space(by - context_.evictor.restore_time(context_.evict_limit), answer);
}

/// Looks at the devices first: a trial takes memory from all others for a moment.
void ResumeOperation::try_restore_space(Time until, const Space& answer) {
  std::set<DeviceUuid> devices;
  for (const auto& [device, bytes] : group_.restore_needs) devices.insert(device);
  const auto tried = later([this, until, answer](const Result<RestoreClaim>& claim) {
    const Code code = claim.status().code();
    if (code == Code::kResourceExhausted || code == Code::kUnavailable)
      return await_restore_space("there is no space to restore the processes of group '" +
                                     group_.machine.name() + "': " + claim.status().text(),
                                 until, answer);
    group_.waits_for.clear();
    answer(claim);
  });
  context_.workers.look(devices, later([this, until, answer, tried](const Workers::Uses& uses) {
                          if (const std::string lack = lack_for_restore(uses); !lack.empty())
                            return await_restore_space(lack, until, answer);
                          context_.restore_space.attempt(group_.restore_needs,
                                                         context_.create_limit, tried);
                        }));
}

void ResumeOperation::await_restore_space(const std::string& lack, Time until,
                                          const Space& answer) {
  if (Clock::now() + RestoreSpace::kPollInterval >= until)
    return answer(Status(Code::kResourceExhausted,
                         lack + ". Pause another group, or end a process on this device, and "
                                "resume again"));
  // As it was first: what is free changes all the time.
  if (group_.waits_for.empty()) group_.waits_for = lack;
  context_.loop.at(Clock::now() + RestoreSpace::kPollInterval,
                   later([this, until, answer] { try_restore_space(until, answer); }));
}

std::string ResumeOperation::lack_for_restore(const Workers::Uses& uses) const {
  for (const auto& [device, bytes] : group_.restore_needs) {
    const auto use = uses.find(device);
    if (use == uses.end() || use->second.free >= bytes) continue;
    return to_string(device) + " has " + format_size(use->second.free) +
           " free, but to restore the processes of group '" + group_.machine.name() + "' takes " +
           format_size(bytes) + " (what their checkpoint freed, and a tenth)";
  }
  return {};
}

bool ResumeOperation::waits_for_restore(const std::vector<GroupId>& groups,
                                        const std::function<void()>& again) {
  // For each slice that is created, so without a look at all allocations where nobody restores.
  if (!context_.restore_space.any_claimed()) return false;
  const BytesByDevice needed = needs_of(groups, what_);
  if (std::none_of(needed.begin(), needed.end(),
                   [this](const auto& each) { return context_.restore_space.claimed(each.first); }))
    return false;
  if (std::exchange(restore_poll_scheduled_, true)) return true;
  context_.loop.at(Clock::now() + RestoreSpace::kPollInterval, later([this, again] {
                     restore_poll_scheduled_ = false;
                     again();
                   }));
  return true;
}

// ---- its memory ---------------------------------------------------------------------------------

void ResumeOperation::run(const action::Admit&) {
  // Else the next amemd would not know that this has begun to change what the ranks have.
  if (Status status = context_.node.records.write(group_); !status.ok())
    return group_.machine.tell(event::Admitted{status}, Clock::now());
  // What those have made meanwhile that were admitted first would count as somebody else's.
  if (exchange_.admitted) return group_.machine.tell(event::Admitted{check_opened()}, Clock::now());
  look_at_devices();
}

void ResumeOperation::look_at_devices() {
  if (waits_for_restore(exchange_.arriving, [this] { look_at_devices(); })) return;
  std::set<DeviceUuid> devices;
  for (const auto& [uuid, bytes] : needs_of(exchange_.arriving, what_)) devices.insert(uuid);
  BytesByDevice leaves = exchange_.closing;
  for (const DeviceUuid& device : devices) leaves[device] += exchange_.spares.bytes(device);
  for (const GroupId leaving : exchange_.leaving)
    for (const Allocation* a : std::as_const(context_.node.allocations).of_group(leaving))
      if (exchange_.leaves(leaving, a->tag) && a->can_leave()) leaves[a->device] += a->size;
  const auto answer = later([this, leaves](const Workers::Uses& uses) { admit(uses, leaves); });
  context_.node.records.record().await_closed(
      lanes_of(devices), kSpaceWithin,
      [&context = context_, devices, answer](bool) { context.workers.look(devices, answer); });
}

/// Decides for all that come in together: one without enough space gets none.
void ResumeOperation::admit(const Workers::Uses& uses, const BytesByDevice& leaves) {
  std::string missing;
  for (const auto& [uuid, bytes] : needs_of(exchange_.arriving, what_)) {
    const auto use = uses.find(uuid);
    const MemoryUse memory = use != uses.end() ? use->second : MemoryUse{};
    const auto more = leaves.find(uuid);
    const std::uint64_t to_come = more != leaves.end() ? more->second : 0;
    if (to_come > 0 && !exchange_.leaving.empty()) {  // else nothing lifts it any more
      const std::uint64_t reserve = Headroom::reserve(memory.total);
      exchange_.headroom.limit(uuid, memory.free > reserve ? memory.free - reserve : 0);
    }
    // Unknown: create will tell.
    if (use == uses.end() || bytes <= memory.free + to_come) continue;
    missing += (missing.empty() ? "" : "; ") + to_string(uuid) + " has " +
               format_size(memory.free) + " free, but " + format_size(bytes) + " are needed";
    if (const std::size_t groups = exchange_.arriving.size(); groups > 1)
      missing += " by the " + std::to_string(groups) + " groups together";
    if (to_come > 0)
      missing += " (another " + format_size(to_come) +
                 " become free when the groups that pause have left)";
  }
  if (!missing.empty() && space_retries_ < std::size(kSpaceRetryDelays)) {
    if (space_retries_ == 0) context_.outbox.trim(*group_.account, false);
    context_.loop.at(Clock::now() + kSpaceRetryDelays[space_retries_++],
                     later([this] { look_at_devices(); }));
    return;
  }
  Status status = check_opened();
  if (!missing.empty())
    status = {Code::kResourceExhausted,
              missing + ". Pause the group or end the process that uses the device"};
  exchange_.admitted = missing.empty();
  group_.machine.tell(event::Admitted{status}, Clock::now());
}

/// Whoever has it open keeps it on its device, so this finds nothing; a rank must not run without.
Status ResumeOperation::check_opened() const {
  const std::vector<RankId> ranks = group_.machine.members().ids();
  Plan opened;
  add_opened(context_.node.allocations, ranks, opened);
  for (const auto& [rank, work] : opened)
    for (const Allocation* a : work.maps)
      if (!a->resident())
        return {Code::kFailedPrecondition, group_.machine.members().label(rank) +
                                               " has opened allocation " + std::to_string(a->id) +
                                               " of another group, which is not on its device. "
                                               "Resume that group first, or end the rank"};
  return {};
}

void ResumeOperation::run(const action::Create& create) {
  epoch_ = create.epoch;
  const std::vector<Creation::Item> items =
      to_bring_back(context_.node.allocations, group_.id, what_, group_.wishes.return_order);
  loaders_.reserve(items.size());
  created_.reserve(items.size());
  creation_ = Creation(items);
  under_way_ = 0;
  asked_.clear();
  in_place_.clear();
  create_more();
}

void ResumeOperation::run(const action::Vacated&) {
  exchange_.headroom.lift();
  if (std::exchange(awaits_space_, false)) create_more();
}

void ResumeOperation::left(Exchange& exchange, const BytesByDevice& bytes) {
  for (const auto& [device, size] : bytes) {
    exchange.closing[device] -= size;
    exchange.closed[device] += size;
    exchange.headroom.give_back(device, size);
  }
  for (ResumeOperation* resume : exchange.resumes) resume->look_for_space();
}

void ResumeOperation::look_for_space() {
  if (!std::exchange(awaits_space_, false)) return;
  context_.loop.post(later([this] {
    if (creates()) create_more();
  }));
}

bool ResumeOperation::creates() const {
  return group_.machine.phase() == Phase::kCreate && group_.machine.epoch() == epoch_;
}

void ResumeOperation::create_more() {
  const auto again = [this] {
    if (creates()) create_more();
  };
  if (!creation_.done() && waits_for_restore({group_.id}, again)) return;
  std::optional<KindCounts> awaited;  // counted for the first that may wait
  std::set<AllocationId> waiting;     // for these; asked again for each slice
  Taken spares;
  const auto takes = [&](const Creation::Item& item) {
    const Allocation* const a = context_.node.allocations.find(item.id);
    if (item.needed > 0 && a != nullptr && a->group == group_.id && may_change_hands(*a)) {
      const MemoryKind kind = kind_of(*a);
      Spare spare = exchange_.spares.take(kind, item.id);
      if (!spare.fd) spare = context_.workers.take_spare(kind, item.id);
      if (spare.fd) {
        spares[item.id] = std::move(spare);
        return true;
      }
      // It gains nothing by being there early, and the driver need not make it.
      if (waiting.contains(item.id)) return false;
      if (item.copied == 0) {
        if (!awaited) awaited = awaited_spares();
        if (const auto count = awaited->find(kind); count != awaited->end() && count->second > 0) {
          --count->second;
          waiting.insert(item.id);
          return false;
        }
      }
    }
    return exchange_.headroom.take(item.device, item.needed);
  };
  // One that is done, and one that waits, for each device.
  const std::size_t most = 2 * context_.devices.all().size();
  while (under_way_ < most) {
    const std::vector<Creation::Item> slice = creation_.next(takes);
    if (slice.empty()) break;
    if (const Status status = create(slice, spares); !status.ok())
      return group_.machine.tell(event::Created{status}, Clock::now());
  }
  if (under_way_ > 0) return;
  close_spares();
  awaits_space_ = !creation_.done();
  if (awaits_space_) return;
  // A group that runs also needs memory that it does not request from amemd, such as for kernels.
  // What its other tags will take is not that.
  const SumsByDevice& own = context_.node.allocations.sums(group_.id);
  KindCounts rest = lacking(context_.node.allocations, {group_.id});
  (void)context_.workers.close_spares([&](const MemoryKind& kind) {
    if (!own.contains(kind.device)) return false;
    const auto awaits = rest.find(kind);
    if (awaits == rest.end() || awaits->second == 0) return true;
    --awaits->second;
    return false;
  });
  group_.machine.tell(event::Created{}, Clock::now());
}

KindCounts ResumeOperation::awaited_spares() const {
  if (!context_.node.hand_on || exchange_.leaving.empty()) return {};
  KindCounts kinds;
  for (const GroupId leaving : exchange_.leaving)
    for (const auto& [kind, count] :
         to_come(context_.node.allocations, leaving,
                 [&](const Allocation& a) { return exchange_.leaves(leaving, a.tag); }))
      kinds[kind] += count;
  return kinds;
}

void ResumeOperation::close_spares() {
  if (exchange_.spares.empty()) return;
  auto rest = exchange_.spares.take_but(lacking(context_.node.allocations, exchange_.arriving));
  if (rest.empty()) return;
  BytesByDevice bytes;
  std::set<DeviceUuid> devices;
  for (const auto& [kind, fds] : rest) {
    bytes[kind.device] += kind.size * fds.size();
    devices.insert(kind.device);
  }
  for (const auto& [device, size] : bytes) exchange_.closing[device] += size;
  rest.clear();
  context_.workers.await_closed(
      devices, [command = of_.command, bytes] { left(command->exchange(), bytes); });
}

Status ResumeOperation::create(const std::vector<Creation::Item>& slice, Taken& spares) {
  std::vector<const Allocation*> there;
  std::map<std::pair<RankId, DeviceUuid>, Batch> batches;  // by maker, too; 0: amemd
  for (const Creation::Item& item : slice) {
    Allocation* const a = context_.node.allocations.find(item.id);
    // Freed meanwhile, or its last sharer has died; guests may have it still.
    if (a == nullptr || a->group != group_.id) {
      exchange_.headroom.give_back(item.device, item.needed);
      continue;
    }
    if (auto spare = spares.extract(item.id); !spare.empty()) {
      if (spare.mapped().has_bytes_of(*a)) in_place_.insert(a->id);
      context_.node.allocations.move(*a, [&] {
        a->fd = std::move(spare.mapped().fd);
        a->sharers_known = true;
        memory_.handed_on += a->size;
      });
    }
    if (a->resident()) {
      there.push_back(a);
      continue;
    }
    Result<Charge> charge = context_.workers.charge(*group_.account, a->size);
    if (!charge.ok()) {
      const bool limited = exchange_.headroom.limited(a->device);
      if (Status status = not_created(item, limited, charge.status()); !status.ok()) return status;
      continue;
    }
    Batch& batch = batches[{a->maker, a->device}];
    batch.limited = exchange_.headroom.limited(a->device);
    batch.items.push_back(item);
    batch.charges.push_back(std::move(charge).value());
    batch.wishes.push_back({a->size, a->gpu_direct_rdma});
  }
  send(there);
  for (auto& [of, ready] : batches) {
    ++under_way_;
    const auto& [maker, uuid] = of;
    if (maker != 0) {
      ask(maker, std::move(ready));
      continue;
    }
    const auto batch = std::make_shared<Batch>(std::move(ready));
    const Device& device = *context_.devices.find(uuid);  // was found when it was first made
    context_.workers.create(device, batch->wishes, context_.create_limit, to_created(batch));
  }
  return {};
}

Status ResumeOperation::not_created(const Creation::Item& item, bool limited, const Status& why) {
  if (why.code() != Code::kResourceExhausted || !limited) return why;
  spdlog::debug("group '{}': {}. The resume waits until memory has left", group_.machine.name(),
                why.text());
  exchange_.headroom.exhaust(item.device);
  creation_.put_back(item);
  return {};
}

std::function<void(Workers::AllMade)> ResumeOperation::to_created(
    const std::shared_ptr<Batch>& batch) {
  return later([this, batch, epoch = epoch_](Workers::AllMade made) {
    if (creates() && epoch == epoch_) created(*batch, made);
  });
}

void ResumeOperation::created(Batch& batch, Workers::AllMade& made) {
  --under_way_;
  std::vector<const Allocation*> slice;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const Creation::Item& item = batch.items[i];
    if (!made[i].ok()) {
      const Status status = not_created(item, batch.limited, made[i].status());
      if (!status.ok()) return group_.machine.tell(event::Created{status}, Clock::now());
      continue;
    }
    Allocation* a = context_.node.allocations.find(item.id);
    if (a == nullptr || a->group != group_.id) {
      exchange_.headroom.give_back(item.device, item.needed);
      continue;
    }
    context_.node.allocations.move(*a, [&] {
      a->fd = charged(std::move(made[i].value().fd), std::move(batch.charges[i]));
      a->sharers_known = true;
    });
    memory_.made += a->size;
    if (made[i].value().handle) created_.push_back(std::move(made[i].value().handle));
    slice.push_back(a);
  }
  send(slice);
  create_more();
}

// ---- what ranks make ----------------------------------------------------------------------------

void ResumeOperation::Batch::take(Batch& from, std::size_t i) {
  items.push_back(from.items[i]);
  charges.push_back(std::move(from.charges[i]));
  wishes.push_back(from.wishes[i]);
  limited = from.limited;
}

void ResumeOperation::ask(RankId maker, Batch batch) {
  const std::uint64_t number = ++last_asked_;
  std::vector<AllocationId> ids;
  for (const Creation::Item& item : batch.items) ids.push_back(item.id);
  const DeviceUuid device = batch.items.front().device;
  const EventLoop::TimerId late = context_.loop.at(Clock::now() + context_.create_limit,
                                                   later([this, number] { not_made(number); }));
  RestoreSpace::Claim making = context_.restore_space.making(device);
  asked_.emplace(number, Asked{maker, std::move(batch), late, std::move(making)});
  const auto tell = [this, maker, number, ids] {
    if (asked_.contains(number)) context_.outbox.send_make(maker, epoch_, number, ids);
  };
  // The rank asks the driver for memory, and to the driver spares are in use.
  const std::set<DeviceUuid> closed = context_.workers.close_spares_on({device});
  if (closed.empty()) return tell();
  context_.workers.await_closed(closed, later(tell));
}

void ResumeOperation::made(RankId rank, const amem_v1_Made& message, std::vector<Fd> fds) {
  const auto found = asked_.find(message.number);
  if (!creates() || Epoch(message.epoch) != epoch_ || found == asked_.end() ||
      found->second.maker != rank)
    return;
  context_.loop.cancel(found->second.late);
  Batch all = std::move(found->second.batch);
  asked_.erase(found);
  --under_way_;
  const std::string who = group_.machine.members().label(rank);
  Status why = made_status(message);
  if (fds.size() != message.ids_count)
    why = {Code::kInternal, std::to_string(message.ids_count) + " allocations came with " +
                                std::to_string(fds.size()) +
                                " descriptors. The rank or amemd may have too many files open: "
                                "raise the limit (ulimit -n, LimitNOFILE)"};
  std::map<AllocationId, Fd> there;
  for (std::size_t i = 0; i < fds.size() && i < message.ids_count; ++i)
    there[message.ids[i]] = std::move(fds[i]);
  const auto batch = std::make_shared<Batch>();
  std::vector<Workers::Brought> brought;
  for (std::size_t i = 0; i < all.items.size(); ++i) {
    const Creation::Item& item = all.items[i];
    if (const auto fd = there.find(item.id); fd != there.end()) {
      batch->take(all, i);
      brought.push_back({batch->wishes.back().size, std::move(fd->second)});
      continue;
    }
    const Allocation* a = context_.node.allocations.find(item.id);
    if (a == nullptr || a->maker != rank) {
      create_otherwise(item);
      continue;
    }
    if (why.ok()) why = {Code::kInternal, "it omits allocation " + std::to_string(item.id)};
    const Status status =
        not_created(item, all.limited, {why.code(), who + " has not made it: " + why.text()});
    if (!status.ok()) return group_.machine.tell(event::Created{status}, Clock::now());
  }
  if (!brought.empty()) {
    ++under_way_;
    const Device& device = *context_.devices.find(batch->items.front().device);
    context_.workers.take(device, std::move(brought), context_.create_limit, to_created(batch));
  }
  create_more();
}

void ResumeOperation::not_made(std::uint64_t number) {
  const auto found = asked_.find(number);
  if (!creates() || found == asked_.end()) return;
  const Asked& asked = found->second;
  group_.machine.tell(
      event::Created{
          {Code::kDeadlineExceeded, group_.machine.members().label(asked.maker) + " has not made " +
                                        std::to_string(asked.batch.items.size()) +
                                        " of the allocations that it makes itself within " +
                                        format_duration(context_.create_limit) +
                                        ", the first of them allocation " +
                                        std::to_string(asked.batch.items.front().id) +
                                        ". It is stopped or stuck. Resume again, or end it"}},
      Clock::now());
}

void ResumeOperation::create_otherwise(const Creation::Item& item) {
  exchange_.headroom.give_back(item.device, item.needed);
  const Allocation* a = context_.node.allocations.find(item.id);
  if (a != nullptr && a->group == group_.id) creation_.put_back(item);
}

void ResumeOperation::maker_gone(RankId rank) {
  if (!creates()) return;
  bool any = false;
  for (auto it = asked_.begin(); it != asked_.end();) {
    const auto each = it++;
    if (each->second.maker != rank) continue;
    context_.loop.cancel(each->second.late);
    for (const Creation::Item& item : each->second.batch.items) create_otherwise(item);
    asked_.erase(each);
    --under_way_;
    any = true;
  }
  if (any) create_more();
}

// ---- to the ranks -------------------------------------------------------------------------------

void ResumeOperation::send(const std::vector<const Allocation*>& slice) {
  for (const auto& [rank, work] : plan_load(slice, in_place_)) {
    for (const Allocation* a : work.maps) loaders_[a->id] = rank;
    context_.outbox.send_maps(rank, epoch_, work.maps, false);
    context_.outbox.send_copies(rank, CopyKind::kLoad, epoch_, work.copies, false);
  }
}

/// What a rank holds and another loads it maps while its own copies are still under way; it may not
/// touch it before everybody has loaded, which is what open waits for.
void ResumeOperation::run(const action::Load& load) {
  Plan peers = plan_peers(context_.node.allocations, group_.id, what_, loaders_);
  add_opened(context_.node.allocations, load.ranks, peers);
  for (const RankId rank : load.ranks) {
    context_.outbox.send_maps(rank, load.epoch, peers[rank].maps, true);
    context_.outbox.send_copies(rank, CopyKind::kLoad, load.epoch, {}, true);
  }
  // While they load. Before they open, a restart takes all of it back.
  Records& records = context_.node.records;
  for (Allocation* a : context_.node.allocations.of_group(group_.id))
    if (a->resident() && !a->holder_entry)
      a->holder_entry = records.record().hold(HolderKind::kIncoming, a->id, a->fd,
                                              context_.devices.lane(a->device));
  records.record().flush();
}

void ResumeOperation::run(const action::Release& release) {
  context_.outbox.send_all(release.ranks, release_message(release.epoch, what_, true));
}

void ResumeOperation::run(const action::Drop&) {
  created_.clear();
  // Only what it would have restored, not what was there all the time.
  drop({.filter = [](const Allocation& a) { return a.paused; }});
}

void ResumeOperation::run(const action::Arrived& arrived) {
  GroupOperation::run(arrived);
  if (created_.empty()) return;
  // Not while somebody waits for the end of the resume.
  context_.loop.post([created = std::make_shared<decltype(created_)>(std::exchange(created_, {}))] {
    created->clear();
  });
}

}  // namespace amem
