#include "daemon/operations/resume_operation.h"

#include <spdlog/spdlog.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "daemon/base/units.h"

namespace amem {

void ResumeOperation::run(const action::Admit&) {
  const Allocations& table = means_.node.allocations;
  BytesByDevice leaves;  // with the swap's other group
  if (leaving_)
    for (const Allocation* a : table.of_group(*leaving_))
      if (a->can_leave()) leaves[a->device] += a->size;

  std::string missing;
  for (const auto& [uuid, bytes] : needs(table, group_.id, what_)) {
    const std::optional<MemoryUse> memory = means_.nvml.memory(uuid);
    const std::uint64_t free = memory ? memory->free : 0;
    const auto more = leaves.find(uuid);
    const std::uint64_t to_come = more != leaves.end() ? more->second : 0;
    if (to_come > 0) {
      const std::uint64_t reserve = Headroom::reserve(memory ? memory->total : 0);
      headroom_.limit(uuid, free > reserve ? free - reserve : 0);
    }
    if (!memory || bytes <= free + to_come) continue;  // unknown: create will tell
    missing += (missing.empty() ? "" : "; ") + to_string(uuid) + " has " + format_size(free) +
               " free, " + format_size(bytes) + " needed";
    if (to_come > 0)
      missing += " (" + format_size(to_come) + " more are free once the other group has left)";
  }
  Status status;
  if (!missing.empty())
    status = {Code::kResourceExhausted,
              missing + ". Pause the group, or end the process, that uses the device"};
  group_.machine.tell(event::Admitted{status}, Clock::now());
}

void ResumeOperation::run(const action::Create& create) {
  epoch_ = create.epoch;
  creation_ = Creation(to_bring_back(means_.node.allocations, group_.id, what_));
  create_slice();
}

void ResumeOperation::run(const action::Room&) {
  headroom_.lift();
  if (std::exchange(awaits_room_, false)) create_slice();
}

void ResumeOperation::give_room(const BytesByDevice& bytes) {
  for (const auto& [device, freed] : bytes) headroom_.give_back(device, freed);
  if (std::exchange(awaits_room_, false)) later_(epoch_);
}

Status ResumeOperation::create_again(const Creation::Item& item, Allocation& a) {
  const Device* device = means_.devices.find(a.device);  // was found when it was first made
  Result<CreatedMemory> made = means_.devices.create(*device, a.size, a.gpu_direct_rdma);
  if (!made.ok()) {
    if (made.status().code() == Code::kResourceExhausted && headroom_.limited(a.device)) {
      spdlog::debug("group '{}': {}; waits until the other group has left", group_.machine.name(),
                    made.status().text());
      headroom_.exhaust(a.device);
      creation_.put_back(item);
      return {};
    }
    return made.status();
  }
  a.fd = std::make_shared<const Fd>(std::move(made.value().fd));
  created_.push_back(std::move(made.value().handle));
  return {};
}

void ResumeOperation::create_slice() {
  std::vector<const Allocation*> slice;
  const std::vector<Creation::Item> items = creation_.next(headroom_);
  awaits_room_ = items.empty() && !creation_.done();
  if (awaits_room_) return;
  for (const Creation::Item& item : items) {
    Allocation* a = means_.node.allocations.find(item.id);
    if (a == nullptr) {  // freed meanwhile, or its last holder has died
      headroom_.give_back(item.device, item.needed);
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
  for (const RankId rank : load.ranks) {
    means_.outbox.send_maps(rank, load.epoch, peers[rank].maps, true);
    means_.outbox.send_copies(rank, CopyKind::kLoad, load.epoch, {}, true);
  }
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
