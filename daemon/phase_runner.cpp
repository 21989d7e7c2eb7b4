#include "daemon/phase_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/costs.h"
#include "daemon/messages.h"
#include "daemon/units.h"

namespace amem {
namespace {

constexpr int kCreatesPerSlice = 64;  // some milliseconds of driver calls
/// What the driver may keep for itself when memory is freed.
constexpr std::uint64_t kFreeTolerance = 16ULL << 20;

}  // namespace

void PhaseRunner::send(RankId id, const Message& message, std::vector<SharedFd> fds) {
  if (const Rank* rank = node_.find_rank(id))
    sessions_.send(rank->session, message, std::move(fds));
}

void PhaseRunner::send_all(const std::vector<RankId>& ranks, const Message& message) {
  for (RankId rank : ranks) send(rank, message);
}

void PhaseRunner::send_copies(RankId rank, CopyKind kind, Epoch epoch,
                              const std::vector<CopyRange>& copies) {
  const CopyRange* at = copies.data();
  const CopyRange* end = at + copies.size();
  do {
    const CopyRange* stop = at + std::min<std::ptrdiff_t>(end - at, kMaxCopiesPerMessage);
    send(rank, copies_message(kind, epoch, at, stop, stop == end));
    at = stop;
  } while (at != end);
}

void PhaseRunner::send_maps(RankId rank, Epoch epoch, const std::vector<const Allocation*>& maps) {
  const Allocation* const* at = maps.data();
  const Allocation* const* end = at + maps.size();
  do {
    const Allocation* const* stop = at + std::min<std::ptrdiff_t>(end - at, kMaxMapsPerMessage);
    std::vector<SharedFd> fds;
    for (const Allocation* const* a = at; a != stop; ++a) fds.push_back((*a)->fd);
    send(rank, map_message(epoch, at, stop, stop == end), std::move(fds));
    at = stop;
  } while (at != end);
}

void PhaseRunner::run(GroupEntry&, const action::Quiesce& quiesce) {
  send_all(quiesce.ranks, quiesce_message(quiesce.epoch));
}

void PhaseRunner::run(GroupEntry&, const action::Step& step) {
  send(step.step.rank, step_message(step.epoch, step.step.device));
}

void PhaseRunner::run(GroupEntry& group, const action::Save& save) {
  const Status status = saved_.take(group, [this](const DeviceUuid& uuid) {
    const Device* device = devices_.find(uuid);
    return device != nullptr ? device->numa_node : -1;
  });
  std::vector<RankId> asked;
  if (status.ok()) {
    for (const auto& [id, plan] : plan_save(node_.allocations, group.id)) {
      Rank* rank = node_.find_rank(id);
      if (rank == nullptr) continue;
      saved_.sent(*rank, save.epoch);
      send_copies(id, CopyKind::kSave, save.epoch, plan.copies);
      asked.push_back(id);
    }
  }
  group.machine.save_sent(status, asked, Clock::now());
}

void PhaseRunner::run(GroupEntry& group, const action::Release& release) {
  send_all(release.ranks,
           release_message(release.epoch, group.machine.task().selection, release.undo));
}

void PhaseRunner::run(GroupEntry& group, const action::Drop&) {
  struct Dropped {
    std::uint64_t bytes = 0;
    std::optional<MemoryUse> before;
  };
  const Task& task = group.machine.task();
  std::map<DeviceUuid, Dropped> dropped;
  for (Allocation* a : node_.allocations.of_group(group.id)) {
    if (!a->resident() || !task.selection.takes(a->tag)) continue;
    // A resume that failed drops what it was to bring back, not what was there all the time.
    if (task.op == Operation::kResume && !a->away) continue;
    a->away = true;
    a->stayed = a->stayed || a->pinned();
    if (a->stayed) continue;
    const auto [entry, first] = dropped.try_emplace(a->device);
    if (first) entry->second.before = nvml_.memory(a->device);
    entry->second.bytes += a->size;
    const InDriver freeing;
    a->fd.reset();
  }
  std::string note;
  for (const auto& [uuid, what] : dropped) {
    const std::optional<MemoryUse> after = nvml_.memory(uuid);
    if (!what.before || !after) continue;
    const std::uint64_t freed =
        what.before->used > after->used ? what.before->used - after->used : 0;
    spdlog::debug("group '{}': {}: {} dropped, {} became free", group.machine.name(),
                  to_string(uuid), format_size(what.bytes), format_size(freed));
    if (freed + kFreeTolerance >= what.bytes) continue;
    note += (note.empty() ? "" : "; ") + to_string(uuid) + ": " + format_size(what.bytes) +
            " dropped, but the memory in use fell by " + format_size(freed) +
            " only: some process still maps it, or others took memory meanwhile";
  }
  if (!note.empty()) spdlog::warn("group '{}': {}", group.machine.name(), note);
  group.machine.dropped(note, Clock::now());
}

void PhaseRunner::run(GroupEntry& group, const action::Admit&) {
  std::map<DeviceUuid, std::uint64_t> need;
  const Selection& what = group.machine.task().selection;
  for (const Allocation* a : node_.allocations.of_group(group.id))
    if (!a->resident() && what.takes(a->tag)) need[a->device] += a->size;
  std::string missing;
  for (const auto& [uuid, bytes] : need) {
    const std::optional<MemoryUse> memory = nvml_.memory(uuid);
    if (!memory || bytes <= memory->free) continue;  // unknown: create will tell
    missing += (missing.empty() ? "" : "; ") + to_string(uuid) + " has " +
               format_size(memory->free) + " free, " + format_size(bytes) + " needed";
  }
  Status status;
  if (!missing.empty())
    status = {Code::kResourceExhausted,
              missing + ". Pause the group, or end the process, that uses the device"};
  group.machine.admitted(status, Clock::now());
}

void PhaseRunner::run(GroupEntry& group, const action::Create& create) {
  group.to_create.clear();
  const Selection& what = group.machine.task().selection;
  for (const Allocation* a : node_.allocations.of_group(group.id))
    if (!a->resident() && what.takes(a->tag)) group.to_create.push_back(a->id);
  if (!create_slice(group)) create_later(group.id, create.epoch);
}

void PhaseRunner::create_later(GroupId id, Epoch epoch) {
  loop_.post([this, id, epoch] {
    const auto it = node_.groups.find(id);
    if (it == node_.groups.end()) return;
    GroupEntry& group = it->second;
    if (group.machine.phase() != Phase::kCreate || group.machine.epoch() != epoch) return;
    if (create_slice(group))
      resumed_(group);
    else
      create_later(id, epoch);
  });
}

bool PhaseRunner::create_slice(GroupEntry& group) {
  for (int made = 0; !group.to_create.empty();) {
    Allocation* a = node_.allocations.find(group.to_create.front());
    if (a == nullptr || a->resident()) {  // freed meanwhile
      group.to_create.pop_front();
      continue;
    }
    if (made++ == kCreatesPerSlice) return false;
    group.to_create.pop_front();
    const Device* device = devices_.find(a->device);  // was found when it was first made
    Result<Fd> fd = devices_.create(*device, a->size, a->gpu_direct_rdma);
    if (!fd.ok()) {
      group.machine.created(fd.status(), Clock::now());
      return true;
    }
    a->fd = std::make_shared<const Fd>(std::move(fd).value());
  }
  group.machine.created({}, Clock::now());
  return true;
}

void PhaseRunner::run(GroupEntry& group, const action::Load& load) {
  const Plan plan =
      plan_load(node_.allocations, group.id, group.machine.task().selection, load.ranks);
  group.loaders = loaders(plan);
  for (const auto& [rank, work] : plan) {
    send_maps(rank, load.epoch, work.maps);
    send_copies(rank, CopyKind::kLoad, load.epoch, work.copies);
  }
}

void PhaseRunner::run(GroupEntry& group, const action::Peers& peers) {
  std::vector<RankId> asked;
  const Selection& what = group.machine.task().selection;
  for (const auto& [rank, work] : plan_peers(node_.allocations, group.id, what, group.loaders)) {
    send_maps(rank, peers.epoch, work.maps);
    asked.push_back(rank);
  }
  group.machine.peers_sent(asked, Clock::now());
}

void PhaseRunner::run(GroupEntry&, const action::Open& open) {
  send_all(open.ranks, open_message(open.epoch));
}

void PhaseRunner::run(GroupEntry& group, const action::Arrived& arrived) {
  for (Allocation* a : node_.allocations.of_group(group.id)) {
    const bool in_place =
        a->resident() && (!a->away || (arrived.loaded && arrived.what.takes(a->tag)));
    if (!in_place) continue;
    saved_.give_back(group, *a);
    a->away = false;
    a->stayed = false;
  }
}

}  // namespace amem
