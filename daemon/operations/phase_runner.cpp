#include "daemon/operations/phase_runner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "daemon/base/units.h"
#include "daemon/memory/in_driver.h"
#include "daemon/sessions/messages.h"

namespace amem {
namespace {

/// What the driver may keep for itself when memory is freed.
constexpr std::uint64_t kFreeTolerance = 16ULL << 20;

/// Calls `send(begin, end, is_last)` for parts of at most so many items. `last`: nothing follows
/// these, so that the rank answers the last part; then there is one in any case.
template <class Item, class Send>
void in_packets(const std::vector<Item>& items, std::ptrdiff_t most, bool last, Send send) {
  const Item* at = items.data();
  const Item* const end = at + items.size();
  while (at != end || last) {
    const Item* stop = at + std::min(end - at, most);
    send(at, stop, last && stop == end);
    if (stop == end) return;
    at = stop;
  }
}

}  // namespace

void PhaseRunner::send(RankId id, const Message& message, std::vector<SharedFd> fds) {
  if (const Rank* rank = node_.find_rank(id))
    sessions_.send(rank->session, message, std::move(fds));
}

void PhaseRunner::send_all(const std::vector<RankId>& ranks, const Message& message) {
  for (RankId rank : ranks) send(rank, message);
}

void PhaseRunner::give_segments(RankId rank, const std::vector<std::uint32_t>& segments) {
  for (const std::uint32_t index : segments) {
    const PoolSegment& segment = node_.segments[index];
    send(rank, pool_segment_message(index, segment.size, segment.memfd), {segment.fd});
  }
}

void PhaseRunner::send_copies(RankId rank, CopyKind kind, Epoch epoch,
                              const std::vector<CopyRange>& copies, bool last) {
  for (const CopyRange& copy : copies)
    if (node_.reach.add(rank, copy.segment)) give_segments(rank, {copy.segment});
  in_packets(copies, kMaxCopiesPerMessage, last, [&](auto at, auto stop, bool is_last) {
    send(rank, copies_message(kind, epoch, at, stop, is_last));
  });
}

void PhaseRunner::send_maps(RankId rank, Epoch epoch, const std::vector<const Allocation*>& maps,
                            bool last) {
  in_packets(maps, kMaxMapsPerMessage, last, [&](auto at, auto stop, bool is_last) {
    std::vector<SharedFd> fds;
    for (auto a = at; a != stop; ++a) fds.push_back((*a)->fd);
    send(rank, map_message(epoch, at, stop, is_last), std::move(fds));
  });
}

void PhaseRunner::run(GroupEntry&, const action::Quiesce& quiesce) {
  send_all(quiesce.ranks, quiesce_message(quiesce.epoch));
}

void PhaseRunner::run(GroupEntry&, const action::Step& step) {
  send(step.step.rank, step_message(step.epoch, step.step));
}

void PhaseRunner::run(GroupEntry& group, const action::Save& save) {
  Status status;
  if (!save.again) {
    status = saved_.take(group, devices_);
    group.failed_savers.clear();
    group.waves.reset();
    if (status.ok() && group.arriving && node_.swap_wave > 0 && lacks_room(*group.arriving)) {
      std::vector<Waves::Item> items;
      for (const Allocation* a : node_.allocations.of_group(group.id))
        if (a->resident() && !a->away) items.push_back({a->id, a->keeper(), a->size});
      group.waves.emplace(items, node_.swap_wave);
      spdlog::debug("group '{}': no room for both groups, it leaves in waves of {}",
                    group.machine.name(), format_size(node_.swap_wave));
    }
  }
  if (group.waves) choose_wave(group);
  std::vector<RankId> asked;
  if (status.ok()) {
    const auto form = [&](const Allocation& a) { return node_.form(group, a); };
    const auto chosen = [&](const Allocation& a) {
      return !group.waves || group.wave.contains(a.id);
    };
    for (const auto& [id, plan] : plan_save(node_.allocations, group.id, form, chosen)) {
      Rank* rank = node_.find_rank(id);
      if (rank == nullptr) continue;
      saved_.sent(*rank, save.epoch);
      send_copies(id, CopyKind::kSave, save.epoch, plan.copies, true);
      asked.push_back(id);
    }
  }
  group.machine.save_sent(status, asked, Clock::now(), group.waves && !group.waves->done());
}

bool PhaseRunner::can_be_released(const GroupEntry& group, const Allocation& a) {
  const auto saver = group.savers.find(a.id);
  if (saver == group.savers.end() || a.pinned()) return true;  // nothing of it is kept, or it stays
  const Rank* rank = node_.find_rank(saver->second);
  // Of no wave, this or an earlier one, is its answer still to come.
  return rank != nullptr && !group.failed_savers.contains(rank->id) && rank->saving.empty();
}

void PhaseRunner::choose_wave(GroupEntry& group) {
  const std::vector<AllocationId> next = group.waves->next([&](AllocationId id) {
    const Allocation* a = node_.allocations.find(id);
    if (a == nullptr || !a->resident() || !can_be_released(group, *a)) return false;
    // The pool's extents are of the rank that was to save it.
    const auto saver = group.savers.find(id);
    return saver == group.savers.end() || saver->second == a->keeper();
  });
  group.wave = {next.begin(), next.end()};
}

void PhaseRunner::run(GroupEntry& group, const action::Release& release) {
  if (!group.waves || release.undo)
    return send_all(release.ranks,
                    release_message(release.epoch, group.machine.task().selection, release.undo));
  // What could not be saved stays where it is.
  std::map<RankId, std::vector<AllocationId>> lists;
  std::erase_if(group.wave, [&](AllocationId id) {
    const Allocation* a = node_.allocations.find(id);
    if (a == nullptr || !can_be_released(group, *a)) return true;
    for (RankId rank : a->holders) lists[rank].push_back(id);
    return false;
  });
  for (const RankId rank : release.ranks)
    in_packets(lists[rank], kMaxReleasesPerMessage, true, [&](auto at, auto stop, bool is_last) {
      send(rank, release_message(release.epoch, at, stop, !is_last));
    });
}

void PhaseRunner::run(GroupEntry& group, const action::Drop&) {
  struct Dropped {
    std::uint64_t bytes = 0;
    std::optional<MemoryUse> before;
  };
  group.created.clear();  // of a resume that failed
  const Task& task = group.machine.task();
  const bool in_waves = group.waves && task.op == Operation::kPause;
  std::map<DeviceUuid, Dropped> dropped;
  for (Allocation* a : node_.allocations.of_group(group.id)) {
    if (!a->resident() || !task.selection.takes(a->tag)) continue;
    // A resume that failed drops what it was to bring back, not what was there all the time.
    if (task.op == Operation::kResume && !a->away) continue;
    if (in_waves && !group.wave.contains(a->id)) continue;
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
  if (in_waves) {
    std::map<DeviceUuid, std::uint64_t> room;
    for (const auto& [uuid, what] : dropped) room[uuid] = what.bytes;
    give_room(group, room);
  }
  group.machine.dropped(note, Clock::now());
}

bool PhaseRunner::lacks_room(GroupId arriving) const {
  const std::map<DeviceUuid, std::uint64_t> need = needs(node_.allocations, arriving, {});
  return std::any_of(need.begin(), need.end(), [&](const auto& entry) {
    const std::optional<MemoryUse> memory = nvml_.memory(entry.first);
    return !memory || memory->free < entry.second + Headroom::reserve(memory->total);
  });
}

void PhaseRunner::give_room(const GroupEntry& leaving,
                            const std::map<DeviceUuid, std::uint64_t>& bytes) {
  const auto it = leaving.arriving ? node_.groups.find(*leaving.arriving) : node_.groups.end();
  if (it == node_.groups.end() || it->second.leaving != leaving.id) return;
  GroupEntry& arriving = it->second;
  for (const auto& [device, freed] : bytes) arriving.headroom.give_back(device, freed);
  if (std::exchange(arriving.awaits_room, false))
    create_later(arriving.id, arriving.machine.epoch());
}

void PhaseRunner::run(GroupEntry& group, const action::Admit&) {
  const std::map<DeviceUuid, std::uint64_t> need =
      needs(node_.allocations, group.id, group.machine.task().selection);
  std::map<DeviceUuid, std::uint64_t> leaves;  // with the swap's other group
  if (group.leaving)
    for (const Allocation* a : node_.allocations.of_group(*group.leaving))
      if (a->can_leave()) leaves[a->device] += a->size;

  group.headroom = {};
  std::string missing;
  for (const auto& [uuid, bytes] : need) {
    const std::optional<MemoryUse> memory = nvml_.memory(uuid);
    const std::uint64_t free = memory ? memory->free : 0;
    const auto more = leaves.find(uuid);
    const std::uint64_t to_come = more != leaves.end() ? more->second : 0;
    if (to_come > 0) {
      const std::uint64_t reserve = Headroom::reserve(memory ? memory->total : 0);
      group.headroom.limit(uuid, free > reserve ? free - reserve : 0);
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
  group.machine.admitted(status, Clock::now());
}

void PhaseRunner::run(GroupEntry& group, const action::Create& create) {
  group.creation =
      Creation(to_bring_back(node_.allocations, group.id, group.machine.task().selection));
  group.loaders.clear();
  group.awaits_room = false;
  create_slice(group, create.epoch);
}

void PhaseRunner::run(GroupEntry& group, const action::Room& room) {
  group.headroom.lift();
  if (std::exchange(group.awaits_room, false)) create_slice(group, room.epoch);
}

void PhaseRunner::create_later(GroupId id, Epoch epoch) {
  loop_.post([this, id, epoch] {
    const auto it = node_.groups.find(id);
    if (it == node_.groups.end()) return;
    GroupEntry& group = it->second;
    if (group.machine.phase() != Phase::kCreate || group.machine.epoch() != epoch) return;
    create_slice(group, epoch);
    if (group.machine.phase() != Phase::kCreate) resumed_(group);
  });
}

Status PhaseRunner::create_again(GroupEntry& group, const Creation::Item& item, Allocation& a) {
  const Device* device = devices_.find(a.device);  // was found when it was first made
  Result<CreatedMemory> made = devices_.create(*device, a.size, a.gpu_direct_rdma);
  if (!made.ok()) {
    if (made.status().code() == Code::kResourceExhausted && group.headroom.limited(a.device)) {
      spdlog::debug("group '{}': {}; waits until the other group has left", group.machine.name(),
                    made.status().text());
      group.headroom.exhaust(a.device);
      group.creation.put_back(item);
      return {};
    }
    return made.status();
  }
  a.fd = std::make_shared<const Fd>(std::move(made.value().fd));
  group.created.push_back(std::move(made.value().handle));
  return {};
}

void PhaseRunner::create_slice(GroupEntry& group, Epoch epoch) {
  std::vector<const Allocation*> slice;
  const std::vector<Creation::Item> items = group.creation.next(group.headroom);
  group.awaits_room = items.empty() && !group.creation.done();
  if (group.awaits_room) return;
  for (const Creation::Item& item : items) {
    Allocation* a = node_.allocations.find(item.id);
    if (a == nullptr) {  // freed meanwhile, or its last holder has died
      group.headroom.give_back(item.device, item.needed);
      continue;
    }
    if (!a->resident()) {
      if (const Status status = create_again(group, item, *a); !status.ok())
        return group.machine.created(status, Clock::now());
    }
    if (a->resident()) slice.push_back(a);
  }
  for (const auto& [rank, work] : plan_load(slice)) {
    for (const Allocation* a : work.maps) group.loaders[a->id] = rank;
    send_maps(rank, epoch, work.maps, false);
    send_copies(rank, CopyKind::kLoad, epoch, work.copies, false);
  }
  if (group.creation.done())
    group.machine.created({}, Clock::now());
  else
    create_later(group.id, epoch);
}

/// What a rank holds and another loads it maps while its own copies are still under way; it may not
/// touch it before everybody has loaded, which is what open waits for.
void PhaseRunner::run(GroupEntry& group, const action::Load& load) {
  const Selection& what = group.machine.task().selection;
  Plan peers = plan_peers(node_.allocations, group.id, what, group.loaders);
  for (const RankId rank : load.ranks) {
    send_maps(rank, load.epoch, peers[rank].maps, true);
    send_copies(rank, CopyKind::kLoad, load.epoch, {}, true);
  }
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
  if (group.created.empty()) return;
  // Not while somebody waits for the end of the resume.
  loop_.post([created = std::make_shared<std::vector<MemoryHandle>>(
                  std::exchange(group.created, {}))] { created->clear(); });
}

}  // namespace amem
