#include "daemon/operations/group_operation.h"

#include <spdlog/spdlog.h>

#include <optional>

#include "daemon/base/units.h"
#include "daemon/memory/in_driver.h"

namespace amem {
namespace {

/// What the driver may keep for itself when memory is freed.
constexpr std::uint64_t kFreeTolerance = 16ULL << 20;
/// How long what was dropped may take to be closed by the holder, too.
constexpr Duration kClosing = std::chrono::seconds(5);

}  // namespace

void GroupOperation::run(const action::Open& open) {
  means_.node.records.write(group_);
  means_.outbox.send_all(open.ranks, open_message(open.epoch));
}

void GroupOperation::run(const action::Arrived& arrived) {
  if (arrived.loaded)
    for (const RankId rank : group_.machine.members().ids())
      means_.node.allocations.set_away(rank, false);
  for (Allocation* a : means_.node.allocations.of_group(group_.id)) {
    const bool in_place =
        a->resident() && (!a->away || (arrived.loaded && arrived.what.takes(a->tag)));
    if (!in_place) continue;
    means_.saved.give_back(*a);
    a->saver = 0;
    a->away = false;
    a->stayed = false;
    a->saved_row.erase();
  }
}

GroupOperation::BytesByDevice GroupOperation::drop(const Allocations::Filter& leaves) {
  BytesByDevice dropped;
  std::map<DeviceUuid, std::optional<MemoryUse>> before;
  for (Allocation* a : means_.node.allocations.of_group(group_.id)) {
    if (!a->resident() || !what_.takes(a->tag) || !leaves(*a)) continue;
    a->away = true;
    a->stayed = a->stayed || a->pinned();
    if (a->stayed) {
      means_.node.records.write_saved(*a);
      continue;
    }
    const auto [entry, first] = dropped.try_emplace(a->device);
    if (first) before[a->device] = means_.nvml.memory(a->device);
    entry->second += a->size;
    const InDriver freeing;
    a->fd.reset();
    a->kept.drop();
  }
  if (!dropped.empty()) means_.node.records.record().settle(kClosing);
  std::string note;
  for (const auto& [uuid, bytes] : dropped) {
    const std::optional<MemoryUse>& was = before[uuid];
    const std::optional<MemoryUse> is = means_.nvml.memory(uuid);
    if (!was || !is) continue;
    const std::uint64_t freed = was->used > is->used ? was->used - is->used : 0;
    spdlog::debug("group '{}': {}: {} dropped, {} became free", group_.machine.name(),
                  to_string(uuid), format_size(bytes), format_size(freed));
    if (freed + kFreeTolerance >= bytes) continue;
    note += (note.empty() ? "" : "; ") + to_string(uuid) + ": " + format_size(bytes) +
            " dropped, but the memory in use fell by " + format_size(freed) +
            " only: some process still maps it, or others took memory meanwhile";
  }
  if (!note.empty()) spdlog::warn("group '{}': {}", group_.machine.name(), note);
  group_.machine.tell(event::Dropped{note}, Clock::now());
  return dropped;
}

}  // namespace amem
