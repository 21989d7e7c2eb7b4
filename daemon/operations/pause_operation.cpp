#include "daemon/operations/pause_operation.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <vector>

#include "daemon/base/units.h"
#include "daemon/operations/resume_operation.h"
#include "daemon/plans/headroom.h"
#include "daemon/plans/plan.h"

namespace amem {

void PauseOperation::run(const action::Quiesce& quiesce) {
  means_.outbox.send_all(quiesce.ranks, quiesce_message(quiesce.epoch));
}

void PauseOperation::run(const action::Step& step) {
  means_.outbox.send(step.step.rank, step_message(step.epoch, step.step));
}

void PauseOperation::run(const action::Save& save) {
  Node& node = means_.node;
  event::SaveSent sent;
  if (save.epoch.wave == 0) sent.status = prepare();
  if (waves_) choose_wave();
  if (sent.status.ok()) {
    const auto form = [&](const Allocation& a) { return node.form(group_, a); };
    const auto chosen = [&](const Allocation& a) { return !waves_ || wave_.contains(a.id); };
    for (const auto& [id, plan] : plan_save(node.allocations, group_.id, form, chosen)) {
      Rank* rank = node.find_rank(id);
      if (rank == nullptr) continue;
      means_.saved.sent(*rank, save.epoch);
      means_.outbox.send_copies(id, CopyKind::kSave, save.epoch, plan.copies, true);
      sent.ranks.push_back(id);
    }
  }
  sent.more = waves_ && !waves_->done();
  group_.machine.tell(std::move(sent), Clock::now());
}

Status PauseOperation::prepare() {
  if (Status status = means_.saved.take(group_, task_, means_.devices); !status.ok()) return status;
  const Node& node = means_.node;
  if (link_ == nullptr || node.swap_wave == 0 || !lacks_room(link_->arriving)) return {};
  std::vector<Waves::Item> items;
  for (const Allocation* a : node.allocations.of_group(group_.id))
    if (a->resident() && !a->away) items.push_back({a->id, a->keeper(), a->size});
  waves_.emplace(items, node.swap_wave);
  spdlog::debug("group '{}': no room for both groups, it leaves in waves of {}",
                group_.machine.name(), format_size(node.swap_wave));
  return {};
}

bool PauseOperation::can_be_released(const Allocation& a) const {
  if (a.saver == 0 || a.pinned()) return true;  // nothing of it is kept, or it stays
  const Rank* rank = means_.node.find_rank(a.saver);
  // Of no wave, this or an earlier one, is its answer still to come.
  return rank != nullptr && !failed_savers_.contains(rank->id) && rank->saving.empty();
}

void PauseOperation::choose_wave() {
  const std::vector<AllocationId> next = waves_->next([&](AllocationId id) {
    const Allocation* a = means_.node.allocations.find(id);
    if (a == nullptr || !a->resident() || !can_be_released(*a)) return false;
    // The pool's extents are of the rank that was to save it.
    return a->saver == 0 || a->saver == a->keeper();
  });
  wave_ = {next.begin(), next.end()};
}

void PauseOperation::run(const action::Release& release) {
  if (!waves_)
    return means_.outbox.send_all(release.ranks, release_message(release.epoch, what_, false));
  // What could not be saved stays where it is.
  std::map<RankId, std::vector<AllocationId>> lists;
  std::erase_if(wave_, [&](AllocationId id) {
    const Allocation* a = means_.node.allocations.find(id);
    if (a == nullptr || !can_be_released(*a)) return true;
    for (RankId rank : a->holders) lists[rank].push_back(id);
    return false;
  });
  for (const RankId rank : release.ranks)
    means_.outbox.send_release(rank, release.epoch, lists[rank]);
}

void PauseOperation::run(const action::Drop&) {
  const BytesByDevice dropped =
      drop([&](const Allocation& a) { return !waves_ || wave_.contains(a.id); });
  if (waves_ && link_->resume != nullptr) link_->resume->give_room(dropped);
}

bool PauseOperation::lacks_room(GroupId arriving) const {
  const BytesByDevice need = needs(means_.node.allocations, arriving, {});
  return std::any_of(need.begin(), need.end(), [&](const auto& entry) {
    const std::optional<MemoryUse> memory = means_.nvml.memory(entry.first);
    return !memory || memory->free < entry.second + Headroom::reserve(memory->total);
  });
}

}  // namespace amem
