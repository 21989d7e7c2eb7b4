#include "daemon/operations/group_operation.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/version.h"
#include "daemon/base/units.h"
#include "daemon/plans/plan.h"
#include "daemon/reports/reports.h"

namespace amem {
namespace {

/// What the driver may keep for itself when memory is freed.
constexpr std::uint64_t kFreeTolerance = 16ULL << 20;
/// How long what was dropped may take to be closed by the holder, too.
constexpr Duration kClosing = std::chrono::seconds(5);
/// How long the holder may take to let go of what is handed on, before it is closed instead. There
/// must be time for that, too, before the deadline of the drop.
constexpr Duration kLettingGo = std::chrono::seconds(1);

}  // namespace

void GroupOperation::tell(Event event) {
  group_.machine.tell(std::move(event), Clock::now());
  context_.drive(group_);
}

void GroupOperation::go_on() {
  tell_wait();
  context_.drive(group_);
}

void GroupOperation::tell_wait() {
  if (told_wait_ == group_.waits_for) return;
  told_wait_ = group_.waits_for;
  if (!told_wait_.empty())
    spdlog::info("group '{}': the {} waits: {}", group_.machine.name(), to_string(task_.op),
                 told_wait_);
  v1::Progress progress;
  progress.set_phase(std::string(phase_name(group_.machine.phase())));
  progress.set_waits_for(told_wait_);
  progress.set_elapsed_us(to_us(Clock::now() - group_.machine.since()));
  tell_command(&RunningCommand::progress, progress);
}

void GroupOperation::run(const action::Progress& progress) {
  if (of_.command == nullptr || !of_.command->watched()) return;
  v1::Progress message;
  message.set_phase(std::string(phase_name(progress.phase)));
  message.set_ranks_done(progress.ranks_done);
  message.set_ranks_total(progress.ranks_total);
  message.set_bytes(progress.bytes);
  message.set_copied_bytes(progress.copied);
  message.set_to_copy_bytes(progress.to_copy);
  message.set_elapsed_us(to_us(progress.elapsed));
  of_.command->progress(of_.member, std::move(message));
}

void GroupOperation::report(const Outcome& outcome, v1::Progress& last) const {
  const auto number = [this](RankId id) {
    const Rank* const rank = context_.node.find_rank(id);
    return rank != nullptr ? rank->number : -1;
  };
  report_phase_times(outcome.times, number, *last.mutable_times());
  report_memory(memory_, *last.mutable_memory());
}

void GroupOperation::run(const action::Ask& ask) {
  (void)context_.node.records.write(group_);
  // One that detaches lets go of segments, and its answer may come when it is too late.
  if (ask.what == RankPhase::kDetach)
    for (const RankId id : ask.ranks)
      if (const Rank* const rank = context_.node.find_rank(id))
        context_.node.pool_of(*rank).reach.doubt(id);
  context_.outbox.send_all(ask.ranks, ask_message(ask.epoch, ask.what));
}

void GroupOperation::run(const action::Arrived& arrived) {
  if (arrived.loaded)
    for (const RankId rank : group_.machine.members().ids())
      context_.node.allocations.set_paused(rank, false);
  for (Allocation* a : context_.node.allocations.of_group(group_.id)) {
    const bool in_place =
        a->resident() && (!a->paused || (arrived.loaded && arrived.what.takes(a->tag, a->sharers)));
    if (!in_place) continue;
    context_.saved.retain(*a);
    a->saved.saver = 0;
    context_.node.allocations.move(*a, [&] { a->paused = a->stayed = false; });
    a->saved.row.erase();
  }
}

/// What has left the tables and is still on its devices.
struct GroupOperation::Leaving {
  struct Memory {
    MemoryKind kind;
    Spare spare;
    HolderEntry holder_entry;
  };
  Leaves how;
  std::uint64_t number = 0;
  std::vector<Memory> handed_on;
  std::vector<Memory> closing;
  Workers::Uses before;

  BytesByDevice bytes() const {
    BytesByDevice bytes;
    for (const Memory& each : closing) bytes[each.kind.device] += each.kind.size;
    return bytes;
  }
};

void GroupOperation::drop(Leaves leaves) {
  const auto leaving = std::make_shared<Leaving>();
  leaving->how = std::move(leaves);
  const Leaves& how = leaving->how;
  for (Allocation* a : context_.node.allocations.of_group(group_.id)) {
    if (!a->resident() || !what_.takes(a->tag, a->sharers) || !how.filter(*a)) continue;
    const bool stays = a->stayed || a->pinned();
    const bool handed_on = !stays && how.handed_on && how.handed_on(*a);
    SharedFd fd;
    context_.node.allocations.move(*a, [&] {
      a->paused = true;
      a->stayed = stays;
      if (!stays) fd = std::exchange(a->fd, nullptr);
    });
    if (stays) {
      (void)context_.node.records.write_saved(*a);
      continue;
    }
    (handed_on ? leaving->handed_on : leaving->closing)
        .push_back({kind_of(*a),
                    {std::move(fd), a->id, a->saved.attempt},
                    std::exchange(a->holder_entry, {})});
  }
  leaving->number = ++drops_;
  if (leaving->handed_on.empty()) return close(leaving);
  std::set<DeviceUuid> devices;
  for (Leaving::Memory& each : leaving->handed_on) {
    devices.insert(each.kind.device);
    each.holder_entry.drop();
  }
  // While the holder has it as this group's, the next amemd would take it for that.
  const auto hand_on = later([this, leaving](bool all) {
    for (Leaving::Memory& each : std::exchange(leaving->handed_on, {}))
      if (all)
        leaving->how.take(each.kind, std::move(each.spare));
      else
        leaving->closing.push_back(std::move(each));
    close(leaving);
  });
  context_.node.records.record().await_closed(lanes_of(devices), kLettingGo, hand_on);
}

void GroupOperation::close(const std::shared_ptr<Leaving>& leaving) {
  if (leaving->closing.empty()) return dropped(*leaving, {});
  const BytesByDevice bytes = leaving->bytes();
  std::set<DeviceUuid> devices;
  for (const auto& [device, size] : bytes) devices.insert(device);
  if (leaving->how.closes) leaving->how.closes(bytes);
  const auto report = later([this, leaving](const Workers::Uses& after) {
    if (leaving->number == drops_) dropped(*leaving, after);
  });
  const auto close = [&context = context_, leaving, devices, report,
                      lanes = lanes_of(devices)](const Workers::Uses& before) {
    leaving->before = before;
    for (Leaving::Memory& each : leaving->closing) {
      each.spare.fd = nullptr;
      each.holder_entry.drop();
    }
    context.node.records.record().await_closed(lanes, kClosing, [&context, devices, report](bool) {
      context.workers.look(devices, report);
    });
  };
  context_.workers.look(devices, close);
}

void GroupOperation::dropped(const Leaving& leaving, const Workers::Uses& after) {
  std::string note;
  const BytesByDevice closed = leaving.bytes();
  for (const auto& [uuid, bytes] : closed) {
    const auto was = leaving.before.find(uuid);
    const auto is = after.find(uuid);
    if (was == leaving.before.end() || is == after.end()) continue;
    const std::uint64_t used = was->second.used;
    const std::uint64_t freed = used > is->second.used ? used - is->second.used : 0;
    spdlog::debug("group '{}': {}: {} dropped, {} became free", group_.machine.name(),
                  to_string(uuid), format_size(bytes), format_size(freed));
    if (freed + kFreeTolerance >= bytes) continue;
    note += (note.empty() ? "" : "; ") + to_string(uuid) + ": " + format_size(bytes) +
            " dropped, but the memory in use fell by only " + format_size(freed) +
            ": a process may still map it, or other processes have allocated memory meanwhile";
  }
  if (!note.empty()) spdlog::warn("group '{}': {}", group_.machine.name(), note);
  for (const auto& [device, bytes] : closed) memory_.closed += bytes;
  if (leaving.how.gone) leaving.how.gone(closed);
  group_.machine.tell(event::Dropped{note, leaving.how.stays}, Clock::now());
}

BytesByDevice GroupOperation::needs_of(const std::vector<GroupId>& groups,
                                       const Selection& what) const {
  BytesByDevice bytes = needs(context_.node.allocations, groups, what);
  for (const GroupId id : groups)
    if (const auto group = context_.node.groups.find(id); group != context_.node.groups.end())
      for (const auto& [device, size] : group->second.restore_needs) bytes[device] += size;
  return bytes;
}

Result<Evictor::Sets> visible_to(const OperationContext& context, const GroupEntry& group) {
  Evictor::Sets sets;
  for (const RankId id : group.machine.members().ids()) {
    const Rank* const rank = context.node.find_rank(id);
    const std::string who =
        "group '" + group.machine.name() + "': " + group.machine.members().label(id);
    const auto refuse = [&who](const std::string& why) {
      return Status(Code::kFailedPrecondition, who + why);
    };
    if (rank == nullptr || (rank->devices.empty() && rank->session == 0))
      return refuse(
          " has not reconnected since amemd began, so amemd does not know which GPUs it sees. Wait "
          "for it, or pause without --deep");
    if (rank->devices.empty())
      return refuse(" does not say which GPUs it sees, because its shim (" + rank->shim_version +
                    ") is older than amemd (" + kVersion +
                    "). Restart the job with the shim of amemd's version, or pause without --deep");
    for (const DeviceUuid& device : rank->devices)
      if (context.devices.find(device) == nullptr)
        return refuse(" sees device " + to_string(device) +
                      ", which amemd does not see, so amemd cannot prove that a deep pause of it "
                      "works. Start amemd with all GPUs, or pause without --deep");
    sets.insert(rank->devices);
  }
  return sets;
}

bool GroupOperation::calls_go_on(const std::function<void()>& again) {
  if (group_.process_calls.expired()) return false;
  context_.loop.at(Clock::now() + RestoreSpace::kPollInterval, later(again));
  return true;
}

std::vector<EvictedProcess> GroupOperation::processes_of(const std::vector<RankId>& ranks) const {
  std::vector<EvictedProcess> processes;
  for (const RankId id : ranks)
    if (const Rank* const rank = context_.node.find_rank(id); rank != nullptr)
      processes.push_back({rank->peer.pid, group_.machine.members().label(id),
                           [peer = rank->peer] { return peer.lives(); }});
  return processes;
}

std::set<std::uint32_t> GroupOperation::lanes_of(const std::set<DeviceUuid>& devices) const {
  std::set<std::uint32_t> lanes;
  for (const DeviceUuid& device : devices) lanes.insert(context_.devices.lane(device));
  return lanes;
}

}  // namespace amem
