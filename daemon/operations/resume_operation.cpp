#include "daemon/operations/resume_operation.h"

#include <spdlog/spdlog.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/plans/guests.h"

namespace amem {
namespace {

/// How long what ranks have freed may take to be closed by the holder.
constexpr Duration kRoomWithin = std::chrono::seconds(1);

}  // namespace

ResumeOperation::ResumeOperation(const Means& means, GroupEntry& group, Selection what,
                                 Exchange* exchange, Later later)
    : GroupOperation(means, group, std::move(what)),
      alone_{{}, {group.id}},
      exchange_(exchange != nullptr ? *exchange : alone_),
      later_(std::move(later)) {
  exchange_.resumes.push_back(this);
}

ResumeOperation::~ResumeOperation() { std::erase(exchange_.resumes, this); }

/// Asks for all that come in together: one for which there is no room comes back with none.
void ResumeOperation::run(const action::Admit&) {
  means_.node.records.record().settle(kRoomWithin);
  const Allocations& table = means_.node.allocations;
  BytesByDevice leaves;
  for (const GroupId leaving : exchange_.leaving)
    for (const Allocation* a : table.of_group(leaving))
      if (a->can_leave()) leaves[a->device] += a->size;

  std::string missing;
  for (const auto& [uuid, bytes] : needs(table, exchange_.arriving, what_)) {
    const std::optional<MemoryUse> memory = means_.nvml.memory(uuid);
    const std::uint64_t free = memory ? memory->free : 0;
    const auto more = leaves.find(uuid);
    const std::uint64_t to_come = more != leaves.end() ? more->second : 0;
    if (to_come > 0) {
      const std::uint64_t reserve = Headroom::reserve(memory ? memory->total : 0);
      exchange_.headroom.limit(uuid, free > reserve ? free - reserve : 0);
    }
    if (!memory || bytes <= free + to_come) continue;  // unknown: create will tell
    missing += (missing.empty() ? "" : "; ") + to_string(uuid) + " has " + format_size(free) +
               " free, " + format_size(bytes) + " needed";
    if (const std::size_t groups = exchange_.arriving.size(); groups > 1)
      missing += " by the " + std::to_string(groups) + " groups together";
    if (to_come > 0)
      missing += " (" + format_size(to_come) + " more are free once what is to go out has left)";
  }
  Status status = check_opened();
  if (!missing.empty())
    status = {Code::kResourceExhausted,
              missing + ". Pause the group, or end the process, that uses the device"};
  group_.machine.tell(event::Admitted{status}, Clock::now());
}

/// Whoever has it open keeps it on its device, so this finds nothing; a rank must not run without.
Status ResumeOperation::check_opened() const {
  const std::vector<RankId> ranks = group_.machine.members().ids();
  Plan opened;
  add_opened(means_.node.allocations, ranks, opened);
  for (const auto& [rank, work] : opened)
    for (const Allocation* a : work.maps)
      if (!a->resident())
        return {Code::kFailedPrecondition, group_.machine.members().label(rank) +
                                               " has opened allocation " + std::to_string(a->id) +
                                               " of another group, which is not on its device; "
                                               "resume that group first, or end the rank"};
  return {};
}

void ResumeOperation::run(const action::Create& create) {
  epoch_ = create.epoch;
  creation_ = Creation(to_bring_back(means_.node.allocations, group_.id, what_));
  create_slice();
}

void ResumeOperation::run(const action::Room&) {
  exchange_.headroom.lift();
  if (std::exchange(awaits_room_, false)) create_slice();
}

void ResumeOperation::look_for_room() {
  if (std::exchange(awaits_room_, false)) later_(epoch_);
}

Status ResumeOperation::create_again(const Creation::Item& item, Allocation& a) {
  const Device* device = means_.devices.find(a.device);  // was found when it was first made
  Result<Charge> charge = group_.account->take(of_device_memory(a.size));
  Result<CreatedMemory> made =
      charge.ok() ? means_.devices.create(*device, a.size, a.gpu_direct_rdma) : charge.status();
  if (!made.ok()) {
    if (made.status().code() == Code::kResourceExhausted && exchange_.headroom.limited(a.device)) {
      spdlog::debug("group '{}': {}; waits until something has left", group_.machine.name(),
                    made.status().text());
      exchange_.headroom.exhaust(a.device);
      creation_.put_back(item);
      return {};
    }
    return made.status();
  }
  a.fd = charged(std::move(made.value().fd), std::move(charge).value());
  created_.push_back(std::move(made.value().handle));
  return {};
}

void ResumeOperation::create_slice() {
  std::vector<const Allocation*> slice;
  const std::vector<Creation::Item> items = creation_.next(exchange_.headroom);
  awaits_room_ = items.empty() && !creation_.done();
  if (awaits_room_) return;
  for (const Creation::Item& item : items) {
    Allocation* a = means_.node.allocations.find(item.id);
    // Freed meanwhile, or its last holder has died; guests may have it still.
    if (a == nullptr || a->group != group_.id) {
      exchange_.headroom.give_back(item.device, item.needed);
      continue;
    }
    if (!a->resident()) {
      if (const Status status = create_again(item, *a); !status.ok())
        return group_.machine.tell(event::Created{status}, Clock::now());
    }
    if (a->resident()) slice.push_back(a);
  }
  for (const auto& [rank, work] : plan_load(slice)) {
    for (const Allocation* a : work.maps) loaders_[a->id] = rank;
    means_.outbox.send_maps(rank, epoch_, work.maps, false);
    means_.outbox.send_copies(rank, CopyKind::kLoad, epoch_, work.copies, false);
  }
  if (creation_.done())
    group_.machine.tell(event::Created{}, Clock::now());
  else
    later_(epoch_);
}

/// What a rank holds and another loads it maps while its own copies are still under way; it may not
/// touch it before everybody has loaded, which is what open waits for.
void ResumeOperation::run(const action::Load& load) {
  Plan peers = plan_peers(means_.node.allocations, group_.id, what_, loaders_);
  add_opened(means_.node.allocations, load.ranks, peers);
  for (const RankId rank : load.ranks) {
    means_.outbox.send_maps(rank, load.epoch, peers[rank].maps, true);
    means_.outbox.send_copies(rank, CopyKind::kLoad, load.epoch, {}, true);
  }
  // While they load. Before they open, a restart takes all of it back.
  Records& records = means_.node.records;
  for (Allocation* a : means_.node.allocations.of_group(group_.id))
    if (a->resident() && !a->kept)
      a->kept = records.record().keep(HolderKind::kIncoming, a->id, a->fd);
  records.record().flush();
}

void ResumeOperation::run(const action::Release& release) {
  means_.outbox.send_all(release.ranks, release_message(release.epoch, what_, true));
}

void ResumeOperation::run(const action::Drop&) {
  created_.clear();
  // What it was to bring back, not what was there all the time.
  drop([](const Allocation& a) { return a.away; });
}

void ResumeOperation::run(const action::Arrived& arrived) {
  GroupOperation::run(arrived);
  if (created_.empty()) return;
  // Not while somebody waits for the end of the resume.
  means_.loop.post([created = std::make_shared<std::vector<MemoryHandle>>(
                        std::exchange(created_, {}))] { created->clear(); });
}

}  // namespace amem
