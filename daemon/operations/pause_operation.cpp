#include "daemon/operations/pause_operation.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/units.h"
#include "daemon/operations/resume_operation.h"
#include "daemon/plans/handing_on.h"
#include "daemon/plans/plan.h"
#include "daemon/reports/reports.h"
#include "daemon/transactions/headroom.h"

namespace amem {

void PauseOperation::carry_out(const Action& action) {
  std::visit(
      [this](const auto& what) {
        if constexpr (requires { run(what); }) run(what);
      },
      action);
}

void PauseOperation::answered(Rank& rank, event::PhaseDone& done) {
  if (done.epoch != group_.machine.epoch()) return;
  if (done.phase == RankPhase::kRelease && done.status.ok()) have_let_go_.insert(rank.id);
  if (done.phase != RankPhase::kSave) return;
  if (done.status.ok()) done.status = check_saved(rank);
  if (done.status.ok()) return;
  failed_savers_.insert(rank.id);
  context_.saved.failed(group_, rank, done.epoch);
}

void PauseOperation::report(const Outcome& outcome, v1::Progress& last) const {
  GroupOperation::report(outcome, last);
  const Leftover stays = leftover(context_.node, group_, what_);
  last.set_pinned_bytes(stays.pinned);
  last.set_unbrokered_bytes(stays.unbrokered);
  last.set_unknown_calls(stays.unknown_calls);
  last.set_dropped_bytes(amem::dropped(context_.node, group_, what_));
  report_saves(outcome.saves, *last.mutable_saves());
  for (const GuestUse& use : guests_) report_guest(context_.node, use, *last.add_guests());
  for (const std::string& remark : remarks_) last.add_remarks(remark);
}

void PauseOperation::look_at_guests() {
  const auto waits = [this] { return group_.machine.phase() == Phase::kGuests; };
  if (!waits()) return;
  context_.loop.post(scope().bind([this, waits] {
    if (!waits()) return;
    run(action::AwaitGuests{});
    // Driving looks again at all that wait: without news this would go on without end.
    if (!waits()) context_.drive(group_);
  }));
}

void PauseOperation::look_at_pool() {
  const auto waits = [this] {
    return group_.machine.phase() == Phase::kSave && !group_.waits_for.empty();
  };
  if (!waits()) return;
  context_.loop.post(scope().bind([this, waits] {
    if (!waits()) return;
    save(group_.machine.epoch());
    if (group_.waits_for.empty()) context_.drive(group_);
  }));
}

void PauseOperation::run(const action::AwaitGuests& await) {
  const std::vector<GuestUse> guests = find_guests();
  const auto can_close = [this](const GuestUse& use) {
    const GroupEntry& group = context_.node.groups.at(use.guest.group);
    // A process that ends loses its session first. One that lives on holds the pause up to the
    // deadline, as does any guest that does not close.
    return group.lost.contains(use.guest.rank) || group.machine.may_allocate(use.guest.rank);
  };
  if (!await.late && std::any_of(guests.begin(), guests.end(), can_close)) return;
  group_.machine.tell(event::GuestsLeft{accept(guests)}, Clock::now());
}

std::vector<GuestUse> PauseOperation::find_guests() const {
  return guests_of(context_.node.allocations, group_.id, [this](const Allocation& a) {
    return what_.takes(a.tag, a.sharers) && a.may_leave();
  });
}

Status PauseOperation::accept(const std::vector<GuestUse>& guests) const {
  const GuestPolicy policy =
      task_.guests == GuestPolicy::kDefault ? context_.node.guests : task_.guests;
  if (guests.empty() || policy == GuestPolicy::kPin) return {};
  return {Code::kFailedPrecondition,
          describe(context_.node, guests) +
              ". Close it there, or pause with guests = pin, which leaves it on its device"};
}

void PauseOperation::run(const action::Quiesce& quiesce) {
  context_.outbox.send_all(quiesce.ranks, quiesce_message(quiesce.epoch, group_.paused_by));
  GroupOperation::run(quiesce);
}

void PauseOperation::run(const action::Permit& permit) {
  context_.outbox.send(permit.permit.rank, permit_message(permit.epoch, permit.permit));
}

void PauseOperation::run(const action::Measure& measure) {
  std::map<RankId, std::vector<MeasureRange>> ranges;
  measured_.emplace();
  for (const Allocation* a : context_.saved.find_to_save(group_, task_)) {
    if (!allows(context_.node.form(group_, *a), Form::kSparse)) continue;
    measured_->ask(a->id, a->keeper(), a->size);
    ranges[a->keeper()].push_back({a->id, a->size});
  }
  for (const RankId rank : measure.ranks)
    context_.outbox.send_measure(rank, measure.epoch, ranges[rank]);
}

bool PauseOperation::measured(RankId rank, const amem_v1_Measured& told) {
  // It belongs to an attempt that has been called off, or to none.
  if (!measured_ || group_.machine.phase() != Phase::kMeasure ||
      group_.machine.epoch() != Epoch(told.epoch))
    return true;
  std::span<const std::uint32_t> masks(told.masks, told.masks_count);
  for (const amem_v1_Measured_Section& section : std::span(told.sections, told.sections_count)) {
    if (section.groups > masks.size() ||
        !measured_->told(rank, section.id, section.first, masks.first(section.groups)))
      return false;
    masks = masks.subspan(section.groups);
  }
  return true;
}

/// Where it waits for space in the pool, it says so: nobody has been told to save anything yet.
void PauseOperation::run(const action::Save& save) {
  this->save(save.epoch);
  tell_wait();
}

void PauseOperation::save(Epoch epoch) {
  Node& node = context_.node;
  if (epoch.wave == 0 && may_need_waves() && !uses_) {
    std::set<DeviceUuid> devices;
    for (const auto& [device, bytes] : needs_of(exchange_->arriving, {})) devices.insert(device);
    return context_.workers.look(devices, later([this, epoch](const Workers::Uses& uses) {
                                   // Else it is on its way back meanwhile, and saves no more.
                                   if (group_.machine.phase() != Phase::kSave) return;
                                   uses_ = uses;
                                   save(epoch);
                                 }));
  }
  event::SaveSent sent;
  if (epoch.wave == 0) sent.status = prepare();
  if (sent.status.code() == Code::kResourceExhausted && !measured_) {
    spdlog::debug("group '{}': {}. The pause looks for zeros", group_.machine.name(),
                  sent.status.text());
    sent = {.status = {}, .ranks = {}, .measure = true};
    return group_.machine.tell(std::move(sent), Clock::now());
  }
  pool_is_short_ = sent.status.code() == Code::kResourceExhausted;
  // Others' space in the pool is made anew for it. The deadline of the phase runs meanwhile.
  const bool waits = sent.status.code() == Code::kUnavailable;
  group_.waits_for = waits ? sent.status.text() : "";
  if (waits) return;
  if (waves_) choose_wave();
  if (sent.status.ok() && epoch.wave == 0) sent.status = put_on_record();
  if (sent.status.ok()) {
    const auto form = [&](const Allocation& a) { return node.form(group_, a); };
    const auto chosen = [&](const Allocation& a) { return !waves_ || wave_.contains(a.id); };
    for (const auto& [id, plan] : plan_save(node.allocations, group_.id, form, chosen)) {
      Rank* rank = node.find_rank(id);
      if (rank == nullptr) continue;
      for (const CopyRange& copy : plan.copies) node.allocations.find(copy.id)->saved.sent = true;
      context_.saved.sent(*rank, epoch);
      context_.outbox.send_copies(id, CopyKind::kSave, epoch, plan.copies, true);
      sent.ranks.push_back(id);
    }
  }
  sent.more = waves_ && !waves_->done();
  group_.machine.tell(std::move(sent), Clock::now());
}

Status PauseOperation::for_operators(const Status& status) const {
  if (!pool_is_short_ || status.ok()) return status;
  const std::string pool_users = context_.saved.pool_users(group_);
  return pool_users.empty() ? status
                            : Status(status.code(), status.text() + "; of the pool, " + pool_users);
}

Status PauseOperation::prepare() {
  // A guest may have come while the ranks became quiet, or were looking for zeros.
  guests_ = find_guests();
  if (Status status = accept(guests_); !status.ok()) return status;
  // A share that has come since its ranks asked for it is of a rank that runs on.
  if (what_.local())
    for (const Allocation* a : std::as_const(context_.node.allocations).of_group(group_.id))
      for (const RankId rank : a->sharers)
        if (what_.takes(a->tag) && !what_.takes(a->tag, a->sharers) && what_.of(rank))
          return {Code::kAborted, "memory of tag '" + a->tag + "' of " +
                                      group_.machine.members().label(rank) +
                                      " is shared with another rank since the pause began. Pause "
                                      "again: that rank must ask for it, too"};
  // What an earlier pause in waves took space for and could not save.
  for (Allocation* a : context_.node.allocations.of_group(group_.id))
    if (what_.takes(a->tag, a->sharers) && a->may_leave() && !a->saved.empty())
      context_.saved.give_back(*a);
  const Measurement* measured = measured_ ? &*measured_ : nullptr;
  if (Status status = context_.saved.take(group_, task_, context_.devices, measured); !status.ok())
    return status;
  bytes_decided_ = true;
  // What is not saved must not leave, though those who keep it here may go before the drop.
  for (Allocation* a : context_.node.allocations.of_group(group_.id))
    if (what_.takes(a->tag, a->sharers) && a->resident() && !a->paused &&
        (a->pinned() || a->opened()))
      stay(*a);
  if (!guests_.empty())
    spdlog::info("group '{}': memory stays on its device: {}", group_.machine.name(),
                 describe(context_.node, guests_));
  const Node& node = context_.node;
  if (!may_need_waves() || !lacks_space(*uses_)) return {};
  std::vector<Waves::Item> items;
  for (const Allocation* a : node.allocations.of_group(group_.id))
    if (what_.takes(a->tag, a->sharers) && a->resident() && !a->paused)
      items.push_back({a->id, a->keeper(), a->saved_bytes()});
  waves_.emplace(items, node.swap_wave);
  spdlog::debug("group '{}': there is no space for both groups, so it leaves in waves of {}",
                group_.machine.name(), format_size(node.swap_wave));
  return {};
}

Status PauseOperation::put_on_record() {
  Records& records = context_.node.records;
  std::uint64_t bytes = records.bytes_of_release(group_);
  for (Allocation* a : context_.node.allocations.of_group(group_.id)) {
    if (!what_.takes(a->tag, a->sharers) || !a->resident() || a->stayed) continue;
    if (!a->saved.empty())
      if (Status status = records.write_saved(*a); !status.ok()) return status;
    if (a->saved.empty() || waves_) bytes += records.bytes_of_release(*a);
  }
  Result<RowReservation> space = records.record().make_space(bytes);
  if (!space.ok()) return space.status();
  space_ = std::move(space).value();
  return {};
}

Status PauseOperation::check_saved(const Rank& rank) const {
  if (!measured_) return {};
  for (const Allocation* a : context_.node.allocations.of_group(group_.id)) {
    const bool asked =
        a->saved.saver == rank.id && a->resident() && (!waves_ || wave_.contains(a->id));
    if (asked && !a->fits())
      return {Code::kInternal, "it reports that it has saved allocation " + std::to_string(a->id) +
                                   ", but not in which form, and its extents are shorter"};
  }
  return {};
}

bool PauseOperation::can_be_released(const Allocation& a) const {
  if (a.saved.saver == 0 || a.pinned()) return true;  // nothing of it is kept, or it stays
  const Rank* rank = context_.node.find_rank(a.saved.saver);
  // No answer for a wave, this or an earlier one, is still to come.
  return rank != nullptr && !failed_savers_.contains(rank->id) && rank->saving.empty();
}

void PauseOperation::choose_wave() {
  const std::vector<AllocationId> next = waves_->next([&](AllocationId id) {
    const Allocation* a = context_.node.allocations.find(id);
    if (a == nullptr || a->group != group_.id || !a->resident() || !can_be_released(*a))
      return false;
    // The pool's extents are of the rank that was to save it.
    return a->saved.saver == 0 || a->saved.saver == a->keeper();
  });
  wave_ = {next.begin(), next.end()};
}

void PauseOperation::stay(Allocation& a) {
  context_.node.allocations.move(a, [&] { a.stayed = true; });
  (void)context_.node.records.write_saved(a);  // also without it, for nothing of it is saved
}

/// From here on a restart goes on with the release. So what leaves is on record before.
void PauseOperation::run(const action::Release& release) {
  bytes_decided_ = true;
  have_let_go_.clear();
  Records& records = context_.node.records;
  if (release.undo) {
    (void)records.write(group_);
    for (const RankId rank : release.ranks)
      context_.outbox.send_release(rank, release.epoch, {}, false);
    return;
  }
  if (!waves_) {
    for (Allocation* a : context_.node.allocations.of_group(group_.id))
      if (what_.takes(a->tag, a->sharers) && a->resident() && !a->stayed && a->saved.empty() &&
          !left_for_later(*a)) {
        a->saved.attempt = release.epoch.attempt;
        (void)records.write_saved(*a, false, &space_);  // its bytes are dropped
      }
    (void)records.write(group_, false, &space_);
    return release_all(release);
  }
  // What could not be saved stays where it is.
  std::map<RankId, std::vector<AllocationId>> lists;
  if (release.epoch.wave == 0 && what_.all())
    for (const RankId rank : release.ranks)
      for (const Allocation* a : std::as_const(context_.node.allocations).opened_by(rank))
        lists[rank].push_back(a->id);
  std::erase_if(wave_, [&](AllocationId id) {
    Allocation* a = context_.node.allocations.find(id);
    if (a == nullptr || !can_be_released(*a)) return true;
    for (RankId rank : a->sharers)
      if (!stays_at(rank, *a)) lists[rank].push_back(id);
    a->saved.attempt = release.epoch.attempt;
    (void)records.write_saved(*a, true, &space_);
    return false;
  });
  (void)records.write(group_, true, &space_);
  for (const RankId rank : release.ranks)
    context_.outbox.send_release(rank, release.epoch, lists[rank], !waves_->done());
}

void PauseOperation::release_all(const action::Release& release) {
  const Allocations& table = context_.node.allocations;
  std::set<RankId> stay_makers;  // of something
  for (const Allocation* a : table.of_group(group_.id))
    if (what_.takes(a->tag, a->sharers) && a->maker != 0 && stays_at(a->maker, *a))
      stay_makers.insert(a->maker);
  for (const RankId rank : release.ranks) {
    // With tags alone a rank would take it that its group runs on.
    if (!stay_makers.contains(rank) && !task_.partial) {
      context_.outbox.send(rank, release_message(release.epoch, what_, false));
      continue;
    }
    std::vector<AllocationId> ids;
    for (const Allocation* a : table.of_group(group_.id))
      if (what_.takes(a->tag, a->sharers) && a->shared_by(rank) && !stays_at(rank, *a) &&
          !left_for_later(*a))
        ids.push_back(a->id);
    if (what_.all())
      for (const Allocation* a : table.opened_by(rank)) ids.push_back(a->id);
    context_.outbox.send_release(rank, release.epoch, ids, false);
  }
}

Status PauseOperation::left_behind() const {
  std::uint64_t bytes = 0;
  std::set<RankId> keepers;
  for (const Allocation* a : std::as_const(context_.node.allocations).of_group(group_.id)) {
    if (!what_.takes(a->tag, a->sharers) || !a->may_leave() || wave_.contains(a->id)) continue;
    bytes += a->size;
    keepers.insert(a->keeper());
  }
  if (bytes == 0) return {};
  return {Code::kAborted, format_size(bytes) + " of " +
                              group_.machine.members().names({keepers.begin(), keepers.end()}) +
                              " could not be saved and stay on their devices. The next pause of "
                              "the group takes them"};
}

void PauseOperation::run(const action::Drop&) {
  if (what_.all())
    for (const RankId rank : group_.machine.members().ids())
      context_.node.allocations.set_paused(rank, true);
  const bool last = waves_ && waves_->done();
  Leaves how{.filter =
                 [this](const Allocation& a) {
                   return waves_ ? wave_.contains(a.id) : !left_for_later(a);
                 },
             .stays = last ? left_behind() : Status()};
  if (exchange_ != nullptr) {
    how.handed_on = handed_on();
    how.take = [this](const MemoryKind& kind, Spare spare) {
      memory_.handed_on += kind.size;
      exchange_->spares.put(kind, std::move(spare));
      for (ResumeOperation* resume : exchange_->resumes) resume->look_for_space();
    };
    how.closes = [this](const BytesByDevice& bytes) {
      for (const auto& [device, size] : bytes) exchange_->closing[device] += size;
    };
    how.gone = [this](const BytesByDevice& bytes) { ResumeOperation::left(*exchange_, bytes); };
  } else if (has_spares()) {
    how.handed_on = [this](const Allocation& a) { return is_let_go(a); };
    how.take = [this](const MemoryKind& kind, Spare spare) {
      context_.workers.add_spare(kind, std::move(spare), Clock::now() + context_.node.spare_idle);
    };
  }
  drop(std::move(how));
}

/// A rank that has not said that it has let go may still write to the memory, or lose its process
/// in the middle of a kernel that does.
bool PauseOperation::is_let_go(const Allocation& a) const {
  return may_change_hands(a) && a.sharers_known &&
         std::all_of(a.sharers.begin(), a.sharers.end(),
                     [this](RankId rank) { return have_let_go_.contains(rank); });
}

/// A deep group that arrives needs memory that is free before it can take any.
Allocations::Filter PauseOperation::handed_on() const {
  if (!context_.node.hand_on) return nullptr;
  KindCounts wanted = lacking(context_.node.allocations, exchange_->arriving);
  for (auto& [kind, count] : wanted) count -= std::min(count, exchange_->spares.count(kind));
  BytesByDevice closes;  // first
  for (const GroupId id : exchange_->arriving)
    if (const auto group = context_.node.groups.find(id); group != context_.node.groups.end())
      for (const auto& [device, size] : group->second.restore_needs) closes[device] += size;
  for (auto& [device, size] : closes) size -= std::min(size, exchange_->closed[device]);
  return [this, wanted, closes](const Allocation& a) mutable {
    std::uint64_t& first = closes[a.device];
    if (first > 0) {
      first -= std::min(first, a.size);
      return false;
    }
    if (!is_let_go(a)) return false;
    const auto kind = wanted.find(kind_of(a));
    if (kind == wanted.end() || kind->second == 0) return false;
    --kind->second;
    return true;
  };
}

void PauseOperation::run(const action::Checkpoint& checkpoint) {
  if (calls_go_on([this, checkpoint] { run(checkpoint); })) return;
  if (!checkpoint_began_) checkpoint_began_ = Clock::now();
  // An operator's pause has been proven before it began; a swap's, one from inside, and one that
  // amemd begins or continues have not.
  const Result<Evictor::Sets> visible = visible_to(context_, group_);
  const std::optional<Status> proven =
      visible.ok() ? context_.evictor.verdict(visible.value()) : visible.status();
  const auto refused = [this](const Status& why) {
    group_.machine.tell(event::Checkpointed{why, false}, Clock::now());
  };
  if (!proven)
    return context_.evictor.prove(visible.value(),
                                  later([this, checkpoint, refused](const Status& now) {
                                    now.ok() ? run(checkpoint) : refused(now);
                                  }));
  if (!proven->ok()) return refused(*proven);
  remark_on_proof(visible.value());
  // The next amemd must know that processes may be locked.
  if (const Status written = context_.node.records.write(group_); !written.ok())
    return group_.machine.tell(event::Checkpointed{written, false}, Clock::now());
  std::set<DeviceUuid> devices;
  for (const Device& device : context_.devices.all()) devices.insert(device.uuid);
  // What a restore will need is what the processes free.
  const auto begin = [this, devices, ranks = checkpoint.ranks](const BytesByDevice& before) {
    const auto done = later([this, devices, before](const Status& status, bool all_run) {
      context_.workers.look(devices,
                            later([this, status, all_run, before](const Workers::Uses& after) {
                              checkpointed(status, !all_run, before, after);
                            }));
    });
    auto& calls = group_.process_calls;  // without processes the operation ends at once
    calls = context_.evictor.evict(
        processes_of(ranks), context_.evict_limit - (Clock::now() - *checkpoint_began_), done);
  };
  context_.workers.look(
      devices, later([this, begin](const Workers::Uses& uses) { begin(unbrokered(uses)); }));
}

void PauseOperation::remark_on_proof(const Evictor::Sets& visible) {
  if (group_.was_deep) return;
  remarks_ = {
      "this is the group's first deep pause. The driver has checkpointed and restored a process of "
      "amemd before, " +
      context_.evictor.terms(visible) +
      ". That is no guarantee: it may still lose a process in the lock, the checkpoint or the "
      "restore"};
  spdlog::info("group '{}': {}", group_.machine.name(), remarks_.front());
}

BytesByDevice PauseOperation::unbrokered(const Workers::Uses& uses) const {
  BytesByDevice bytes;
  for (const auto& [uuid, use] : uses)
    bytes[uuid] = use.used - std::min(use.used, context_.node.brokered(uuid));
  return bytes;
}

void PauseOperation::checkpointed(const Status& status, bool deep, const BytesByDevice& before,
                                  const Workers::Uses& after) {
  group_.restore_needs.clear();
  const BytesByDevice all_left = unbrokered(after);
  for (const auto& [device, use] : after) {
    const auto was = before.find(device);
    const std::uint64_t left = all_left.at(device);
    if (!deep || was == before.end() || left >= was->second) continue;
    const std::uint64_t most = use.free + context_.node.brokered(device);
    group_.restore_needs[device] = Headroom::for_restore(was->second - left, most, use.total);
  }
  group_.was_deep |= deep;
  group_.machine.tell(event::Checkpointed{status, deep}, Clock::now());
}

bool PauseOperation::lacks_space(const Workers::Uses& uses) const {
  const BytesByDevice need = needs_of(exchange_->arriving, {});
  return std::any_of(need.begin(), need.end(), [&](const auto& entry) {
    const auto use = uses.find(entry.first);
    return use == uses.end() ||
           use->second.free < entry.second + Headroom::reserve(use->second.total);
  });
}

}  // namespace amem
