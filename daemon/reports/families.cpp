#include "daemon/reports/families.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "common/job.h"
#include "common/protocol.h"
#include "common/version.h"
#include "daemon/memory/host_memory.h"
#include "daemon/node/names.h"
#include "daemon/reports/book.h"

namespace amem {
namespace {

constexpr double kMicroseconds = 1e6;  // in a second

std::string_view result_name(Code code) {
  static constexpr std::array<std::string_view, 16> kNames = {"ok",
                                                              "cancelled",
                                                              "unknown",
                                                              "invalid_argument",
                                                              "deadline_exceeded",
                                                              "not_found",
                                                              "already_exists",
                                                              "permission_denied",
                                                              "resource_exhausted",
                                                              "failed_precondition",
                                                              "aborted",
                                                              "out_of_range",
                                                              "unimplemented",
                                                              "internal",
                                                              "unavailable",
                                                              "data_loss"};
  const auto number = static_cast<std::size_t>(code);
  return number < kNames.size() ? kNames[number] : kNames[2];
}

Labels labels_of(const std::string& group, const Account& account) {
  Labels labels = {{"group", std::string(name_of_group(group))},
                   {"owner", key_of(account.owner())}};
  if (const std::string_view job = job_of_group(group); !job.empty())
    labels.push_back({"group_job", std::string(job)});
  return labels;
}
Labels labels_of(const GroupEntry& group) {
  return labels_of(group.machine.name(), *group.account);
}

/// A device that is not there any more has no number.
Labels labels_of(const Devices& devices, const DeviceUuid& uuid) {
  const Device* device = devices.find(uuid);
  return {{"device", device != nullptr ? std::to_string(device->ordinal) : ""},
          {"UUID", to_string(uuid)}};
}

void add_broker(Book& book, const Measured& m) {
  book.gauge("amem_build_info", "Version of amemd, and of its protocol with ranks")
      .add({{"version", kVersion}, {"session_protocol", std::to_string(kProtocolVersion)}}, 1.0);
  book.gauge("process_start_time_seconds", "Start time of amemd, in seconds since 1970")
      .add({}, std::chrono::duration<double>(m.began.time_since_epoch()).count());
  book.gauge("process_resident_memory_bytes", "Host memory of amemd, without the pool")
      .add({}, resident_memory());
  book.gauge("amem_holder_attached",
             "1: paused memory outlives amemd; 0: no holder has everything, so it would be lost")
      .add({}, m.node.records.record().outlives().ok() ? 1.0 : 0.0);
}

void add_devices(Book& book, const Measured& m, const Caller& caller) {
  Family& info = book.gauge("amem_device_info", "GPUs that amemd serves");
  Family& size = book.gauge("amem_device_size_bytes", "Memory of the device");
  Family& used =
      book.gauge("amem_device_used_bytes",
                 "Memory of the device in use by all processes; absent while it is unknown");
  Family& spare = book.gauge("amem_device_spare_bytes",
                             "Free memory of the device that waits for a resume (spare.idle)");
  Family& brokered =
      book.gauge("amem_device_brokered_bytes", "Memory of the device that belongs to groups");
  Family& hangs = book.gauge("amem_device_hanging", "1: a call to the driver does not return");
  for (const Device& device : m.devices.all()) {
    const Labels labels = labels_of(m.devices, device.uuid);
    info.add(with(labels, {{"model", device.name}}), 1.0);
    const auto use = m.workers.seen().find(device.uuid);
    const bool known = use != m.workers.seen().end();
    size.add(labels, known ? use->second.total : device.total);
    if (known) used.add(labels, use->second.used);
    spare.add(labels, m.workers.spares().bytes(device.uuid));
    brokered.add(labels, m.node.allocations
                             .usage([&](const Allocation& a) {
                               return a.device == device.uuid &&
                                      caller.may_see(*a.charge.account());
                             })
                             .resident);
    hangs.add(labels, m.workers.hangs(device.uuid).empty() ? 0.0 : 1.0);
  }
}

void add_pool(Book& book, const Measured& m, const Caller& caller) {
  const std::uint64_t ready = m.node.pools.total();
  const std::uint64_t used = m.node.pools.used([](const Account&) { return true; });
  book.gauge("amem_pool_configured_bytes", "Most pinned host memory that the pool may have")
      .add({}, m.node.pool_configured);
  book.gauge("amem_pool_reserve_bytes", "Of that, what stays pinned all the time")
      .add({}, m.node.pool_reserve);
  Family& pool = book.gauge(
      "amem_pool_bytes", "Pinned host memory of the pool: used holds saved bytes, free is ready");
  // How much others have saved is theirs to know.
  if (!caller.sees_all && !caller.operates) return pool.add({{"state", "ready"}}, ready);
  pool.add({{"state", "used"}}, used);
  pool.add({{"state", "free"}}, ready - std::min(ready, used));
  book.gauge("amem_pool_retained_bytes",
             "Of the pool's free bytes, those that hold loaded bytes, with which a pause compares")
      .add({}, m.node.pools.retained([](const Account&) { return true; }));
}

/// The bytes of a group's memory of one tag on one device.
struct Share {
  std::uint64_t resident = 0;
  std::uint64_t saved = 0;    // paused, and its bytes are kept
  std::uint64_t dropped = 0;  // paused, and returns zeroed
};

void add_memory(Book& book, const Measured& m, const std::vector<const GroupEntry*>& groups) {
  Family& memory =
      book.gauge("amem_group_memory_bytes",
                 "Memory of a group: resident is on the device, saved is paused with its bytes in "
                 "the pool, dropped is paused without bytes, and a resume provides zeros");
  Family& pool =
      book.gauge("amem_group_pool_bytes", "Space in the pool that the saved bytes of a group take");
  Family& retained = book.gauge(
      "amem_group_retained_bytes",
      "Free space in the pool that holds loaded bytes of a group, with which a pause compares");
  Family& pinned =
      book.gauge("amem_group_pinned_bytes",
                 "Memory of a group that cannot leave its device, e.g. registered with a NIC");
  for (const GroupEntry* group : groups) {
    std::map<std::pair<std::string_view, DeviceUuid>, Share> shares;
    std::map<std::string_view, std::uint64_t> in_pool;
    std::map<std::string_view, std::uint64_t> again;
    const OwnPool* const own = m.node.pools.find(group->account);
    std::map<std::string_view, std::uint64_t> stays;
    for (const Allocation* a : m.node.allocations.of_group(group->id)) {
      Share& share = shares[{a->tag, a->device}];
      (a->resident() ? share.resident : a->dropped() ? share.dropped : share.saved) += a->size;
      in_pool[a->tag] += a->saved_bytes();
      again[a->tag] += own != nullptr ? own->retained.bytes(a->id) : 0;
      stays[a->tag] += a->pinned() ? a->size : 0;
    }
    const Labels labels = labels_of(*group);
    for (const auto& [where, share] : shares) {
      const Labels all = with(with(labels, {{"tag", std::string(where.first)}}),
                              labels_of(m.devices, where.second));
      memory.add(with(all, {{"state", "resident"}}), share.resident);
      memory.add(with(all, {{"state", "saved"}}), share.saved);
      memory.add(with(all, {{"state", "dropped"}}), share.dropped);
    }
    for (const auto& [tag, bytes] : again)
      retained.add(with(labels, {{"tag", std::string(tag)}}), bytes);
    for (const auto& [tag, bytes] : in_pool)
      pool.add(with(labels, {{"tag", std::string(tag)}}), bytes);
    for (const auto& [tag, bytes] : stays)
      pinned.add(with(labels, {{"tag", std::string(tag)}}), bytes);
  }
}

void add_ranks(Book& book, const Measured& m, const std::vector<const GroupEntry*>& groups) {
  Family& ranks = book.gauge(
      "amem_sessions", "Ranks of a group: connected, or awaited to reconnect after a restart");
  Family& waiting =
      book.gauge("amem_rank_waiting", "1: the group waits for this rank to finish this phase");
  Family& unbrokered = book.gauge("amem_group_unbrokered_bytes",
                                  "Device memory of a group's ranks that is not brokered, so it "
                                  "stays on the device during a pause");
  for (const GroupEntry* group : groups) {
    const Labels labels = labels_of(*group);
    std::size_t awaited = 0;
    std::map<std::pair<DeviceUuid, std::string>, std::uint64_t> rest;
    const auto& ids = group->machine.members().ids();
    for (const RankId id : ids) {
      const Rank& rank = m.node.ranks.at(id);
      if (rank.session == 0) ++awaited;
      for (const Unbrokered& u : rank.unbrokered)
        if (!u.host) rest[{u.device, u.kind}] += u.bytes;
      if (const auto phase = group->machine.waiting_for(id); !phase.empty())
        waiting.add(with(labels, {{"rank", rank.number >= 0 ? std::to_string(rank.number) : ""},
                                  {"pid", std::to_string(rank.peer.pid)},
                                  {"phase", std::string(phase)}}),
                    1.0);
    }
    ranks.add(with(labels, {{"state", "connected"}}), static_cast<double>(ids.size() - awaited));
    ranks.add(with(labels, {{"state", "awaited"}}), static_cast<double>(awaited));
    for (const auto& [what, bytes] : rest) {
      unbrokered.add(with(with(labels, {{"kind", what.second}}), labels_of(m.devices, what.first)),
                     bytes);
    }
  }
}

void add_groups(Book& book, const Measured& m, const Caller& caller) {
  std::vector<const GroupEntry*> groups;
  for (const auto& [id, group] : m.node.groups)
    if (caller.may_see(*group.account)) groups.push_back(&group);
  Family& state =
      book.gauge("amem_group_state", "1 for the state of a group, 0 for the other states");
  for (const GroupEntry* group : groups)
    for (const GroupState each :
         {GroupState::kRunning, GroupState::kPausing, GroupState::kPaused, GroupState::kResuming})
      state.add(with(labels_of(*group), {{"state", std::string(to_string(each))}}),
                group->machine.state() == each ? 1.0 : 0.0);
  Family& stopped = book.gauge("amem_group_stopped_ranks",
                               "Ranks of a group whose processes are stopped, as by Ctrl-Z");
  for (const GroupEntry* group : groups)
    stopped.add(labels_of(*group), static_cast<double>(stopped_ranks(m.node, *group).size()));
  add_memory(book, m, groups);
  add_ranks(book, m, groups);
}

void add_operations(Book& book, const Measured& m) {
  const Totals& totals = m.node.totals;
  Family& results = book.counter(
      "amem_operations_total", "Operations by result: all pauses and resumes of groups, and swaps");
  for (const auto& [what, count] : totals.results())
    results.add(
        {{"operation", std::string(what.first)}, {"result", std::string(result_name(what.second))}},
        count);
  Family& whole =
      book.histogram("amem_operation_seconds", "Durations of operations that succeeded");
  Family& parts = book.histogram("amem_transition_seconds",
                                 "Durations of the phases of pauses and resumes that succeeded");
  for (const auto& [what, histogram] : totals.times()) {
    Labels labels = {{"operation", std::string(what.first)}};
    if (what.second == Phase::kNone)
      whole.add(std::move(labels), histogram, kMicroseconds);
    else
      parts.add(with(labels, {{"phase", std::string(phase_name(what.second))}}), histogram,
                kMicroseconds);
  }
  Family& bytes = book.histogram(
      "amem_transition_bytes",
      "Bytes that successful pauses copied to the pool, and successful resumes from it");
  for (const auto& [operation, histogram] : totals.bytes())
    bytes.add({{"operation", std::string(operation)}}, histogram, 1);
  Family& kept = book.counter(
      "amem_pause_kept_bytes_total",
      "Bytes that successful pauses kept: copied to the pool, or found there unchanged");
  kept.add({{"state", "copied"}}, totals.kept().copied);
  kept.add({{"state", "unchanged"}}, totals.kept().unchanged);
  book.counter("amem_pause_compared_bytes_total",
               "Bytes that successful pauses compared with what the pool had")
      .add({}, totals.kept().compared);
  Family& memory = book.counter(
      "amem_moved_memory_bytes_total",
      "Device memory of pauses and resumes: handed on between groups, made or freed by the driver");
  memory.add({{"how", "handed_on"}}, totals.memory().handed_on);
  memory.add({{"how", "made"}}, totals.memory().made);
  memory.add({{"how", "closed"}}, totals.memory().closed);
  Family& events = book.counter("amem_events_total", "Events by kind, including errors");
  for (const auto& [kind, count] : m.events.published()) events.add({{"kind", kind}}, count);
}

double in_seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

/// Adds what the stages' groups do, if the caller may see them.
void add_turns(Book& book, const Measured& m, const Caller& caller) {
  Family& turns = book.counter(
      "amem_group_turn_seconds_total",
      "Time of a group in its stage: all of it (there), while it ran, and while it waited");
  for (const auto& [stage, figures] : m.node.stages)
    for (const auto& [id, time] : figures.groups) {
      const auto group = m.node.groups.find(id);
      if (group == m.node.groups.end() || !caller.may_see(*group->second.account)) continue;
      const Labels labels =
          with(labels_of(group->second.machine.name(), *group->second.account), {{"stage", stage}});
      turns.add(with(labels, {{"turn", "there"}}), in_seconds(time.there));
      turns.add(with(labels, {{"turn", "ran"}}), in_seconds(time.ran));
      turns.add(with(labels, {{"turn", "waited"}}), in_seconds(time.waited));
    }
  if (!caller.sees_all && !caller.operates) return;
  Family& switches = book.counter("amem_stage_switches_total", "Switches of a stage by result");
  Family& switching =
      book.counter("amem_stage_switching_seconds_total", "Time that a stage spent on switches");
  Family& waits =
      book.histogram("amem_stage_wait_seconds", "How long groups waited for their turns");
  for (const auto& [stage, figures] : m.node.stages) {
    for (const auto& [code, count] : figures.switches)
      switches.add({{"stage", stage}, {"result", std::string(result_name(code))}}, count);
    switching.add({{"stage", stage}}, in_seconds(figures.switching));
    waits.add({{"stage", stage}}, figures.waits, kMicroseconds);
  }
}

void add_refusals(Book& book, const Measured& m, const Caller& caller) {
  Family& refusals = book.counter("amem_quota_refusals_total",
                                  "Requests that amemd refused because a quota was reached");
  for (const auto& account : m.accounts.all()) {
    if (!caller.may_see(*account)) continue;
    for (const Resource resource : kAllResources)
      refusals.add(
          {{"owner", key_of(account->owner())}, {"resource", std::string(to_string(resource))}},
          account->refusals(resource));
  }
}

}  // namespace

Families metric_families(const Measured& measured, const Caller& caller) {
  Book book;
  add_broker(book, measured);
  add_devices(book, measured, caller);
  add_pool(book, measured, caller);
  add_groups(book, measured, caller);
  if (caller.sees_all || caller.operates) add_operations(book, measured);
  add_turns(book, measured, caller);
  add_refusals(book, measured, caller);
  return book.take();
}

}  // namespace amem
