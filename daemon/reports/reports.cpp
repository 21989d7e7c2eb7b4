#include "daemon/reports/reports.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <string_view>

#include "common/job.h"
#include "common/protocol.h"
#include "common/version.h"
#include "daemon/base/units.h"
#include "daemon/memory/host_memory.h"
#include "daemon/node/history.h"
#include "daemon/node/names.h"

namespace amem {
namespace {

void count(const Allocation& a, const GroupEntry& group, v1::TagUsage& usage) {
  usage.set_allocation_count(usage.allocation_count() + 1);
  usage.set_allocated_bytes(usage.allocated_bytes() + a.size);
  if (a.resident()) usage.set_resident_bytes(usage.resident_bytes() + a.size);
  usage.set_saved_bytes(usage.saved_bytes() + a.saved_bytes());
  if (a.pinned()) usage.set_pinned_bytes(usage.pinned_bytes() + a.size);
  if (group.discards(a)) usage.set_discard_bytes(usage.discard_bytes() + a.size);
  if (a.dropped()) usage.set_dropped_bytes(usage.dropped_bytes() + a.size);
}

/// Adds one TagUsage for each entry to `tags`.
template <class List>
void add_tags(std::map<std::string, v1::TagUsage>& usage, List& tags) {
  for (auto& [tag, u] : usage) {
    u.set_tag(tag);
    tags.Add()->Swap(&u);
  }
}

bool may_see(const Caller& caller, const PastOperation& past) {
  return caller.sees_all || caller.operates ||
         (caller.account != nullptr && caller.account->owner() == past.owner);
}

std::string address_of(const PastOperation& past) { return past.group + "@" + key_of(past.owner); }

/// Of owners that have groups or a part of the pool.
void report_shares(const Node& node, const Caller& caller, v1::PoolStatus& status) {
  std::map<Owner, std::shared_ptr<Account>> owners;
  const auto add = [&](const std::shared_ptr<Account>& account) {
    if (caller.may_see(*account)) owners[account->owner()] = account;
  };
  node.pools.each_owner([&](const auto& account, const OwnPool&) { add(account); });
  for (const auto& [id, group] : node.groups) add(group.account);
  for (const auto& [owner, account] : owners) {
    v1::PoolShare& share = *status.add_shares();
    share.set_owner(to_string(owner));
    share.set_available_bytes(node.pools.space(account).all() + node.pools.can_make(account));
    const OwnPool* const pool = node.pools.find(account);
    if (pool == nullptr) continue;
    share.set_segment_bytes(pool->extents.total());
    share.set_free_bytes(pool->available());
  }
}

/// As name_for(), of a group that may be gone: short where no other owner or job has one of that
/// name.
std::string name_for(const History& history, const Caller& caller, const PastOperation& past) {
  const bool own = caller.account != nullptr && caller.account->owner() == past.owner;
  std::string name(name_of_group(past.group));
  for (const PastOperation& other : history.all()) {
    if (name_of_group(other.group) != name_of_group(past.group) || !may_see(caller, other))
      continue;
    if (other.owner != past.owner && !own) return address_of(past);
    if (other.owner == past.owner && other.group != past.group) name = past.group;
  }
  return name;
}

bool asked_for(const v1::ListHistoryRequest& request, const PastOperation& past) {
  if (request.transaction() != 0 && past.transaction != request.transaction()) return false;
  const std::string& name = request.group();
  if (name.empty()) return true;
  return may_be_called(name, past.group, past.owner);
}

void report_calls(Duration command, const char* name, Duration time, const Period& when,
                  v1::RankSpan& message) {
  if (when.to == Duration::zero()) return;
  v1::CallSpan& call = *message.add_calls();
  call.set_name(name);
  call.set_begin_us(to_us(command + when.from));
  call.set_us(to_us(when.to - when.from));
  call.set_in_calls_us(to_us(time));
}

void report_span(const PastOperation& past, const RankSpan& span, v1::RankSpan& message) {
  message.set_id(span.rank);
  const auto face = past.ranks.find(span.rank);
  message.set_rank(face != past.ranks.end() ? face->second.number : -1);
  if (face != past.ranks.end()) message.set_pid(face->second.pid);
  message.set_work(std::string(to_string(span.what)));
  // A rank says for how long it was busy, not since when; the answer's way here is counted too.
  const CommandTimes& spent = span.spent;
  const Duration busy = std::min(spent.busy, span.answered);
  const Duration command = span.answered - busy;
  message.set_begin_us(to_us(command));
  message.set_us(to_us(busy));
  message.set_bytes(span.bytes);
  report_calls(command, "copy", spent.copy, spent.when_copy, message);
  report_calls(command, "cuMemImportFromShareableHandle", spent.import, spent.when_import, message);
  report_calls(command, "cuMemMap", spent.map, spent.when_map, message);
  report_calls(command, "cuMemSetAccess", spent.access, spent.when_access, message);
  report_calls(command, "cuMemUnmap", spent.unmap, spent.when_unmap, message);
  report_calls(command, "cuMemRelease", spent.release, spent.when_release, message);
}

void report_past(const PastOperation& past, bool spans, v1::PastOperation& message) {
  const Outcome& outcome = past.outcome;
  message.set_transaction(past.transaction);
  message.set_swap(past.swap);
  message.set_by_broker(past.by_broker);
  message.set_deep(outcome.task.deep);
  message.set_partial(outcome.task.partial);
  message.set_operation(std::string(to_string(outcome.task.op)));
  message.set_tags(to_string(outcome.task.selection));
  message.set_began_us(to_us(past.began.time_since_epoch()));
  message.set_us(to_us(outcome.total));
  message.set_code(static_cast<std::uint32_t>(outcome.status.code()));
  message.set_error(outcome.status.text());
  message.set_bytes(copied(outcome));
  const auto number = [&](RankId rank) {
    const auto face = past.ranks.find(rank);
    return face != past.ranks.end() ? face->second.number : -1;
  };
  report_phase_times(outcome.times, number, *message.mutable_times());
  report_saves(outcome.saves, *message.mutable_saves());
  for (const std::string& remark : past.remarks) message.add_remarks(remark);
  report_memory(past.memory, *message.mutable_memory());
  if (!spans) return;
  for (const PhaseSpan& phase : outcome.spans) {
    v1::PhaseSpan& span = *message.add_spans();
    span.set_phase(std::string(phase_name(phase.phase)));
    span.set_begin_us(to_us(phase.begin));
    span.set_us(to_us(phase.end - phase.begin));
    for (const RankSpan& rank : phase.ranks) report_span(past, rank, *span.add_ranks());
  }
}

}  // namespace

v1::GroupState to_proto(GroupState state) {
  switch (state) {
    case GroupState::kRunning:
      return v1::GROUP_STATE_RUNNING;
    case GroupState::kPausing:
      return v1::GROUP_STATE_PAUSING;
    case GroupState::kPaused:
      return v1::GROUP_STATE_PAUSED;
    case GroupState::kResuming:
      return v1::GROUP_STATE_RESUMING;
  }
  return v1::GROUP_STATE_UNSPECIFIED;
}

static_assert(static_cast<int>(Form::kAuto) == v1::FORM_AUTO &&
              static_cast<int>(Form::kDense) == v1::FORM_DENSE &&
              static_cast<int>(Form::kSparse) == v1::FORM_SPARSE);
v1::Form to_proto(Form form) { return static_cast<v1::Form>(form); }

std::optional<Form> from_proto(v1::Form form) { return form_of(static_cast<std::uint32_t>(form)); }

namespace {

GroupCondition::State state_of(GroupState state) {
  switch (state) {
    case GroupState::kRunning:
      return GroupCondition::State::kRunning;
    case GroupState::kPausing:
      return GroupCondition::State::kPausing;
    case GroupState::kPaused:
      return GroupCondition::State::kPaused;
    case GroupState::kResuming:
      return GroupCondition::State::kResuming;
  }
  return GroupCondition::State::kUnknown;
}

/// Returns which ranks the group lacks, for people; empty: none.
std::string lost_ranks(const GroupEntry& group) {
  std::string text = group.machine.lost();
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
  for (const auto& [number, label] : group.ended)
    if (text.find(label) == std::string::npos) add("lost " + label);
  for (const RankId rank : group.lost)
    add("lost " + group.machine.members().label(rank));  // "… whose session has ended"
  return text;
}

bool is_partial(const Node& node, const GroupEntry& group) {
  return group.machine.state() == GroupState::kPaused &&
         node.allocations.any(group.id, [](const Allocation& a) { return a.may_leave(); });
}

}  // namespace

void report_group(const Node& node, const Caller& caller, const GroupEntry& group,
                  v1::GroupInfo& info) {
  const Group& machine = group.machine;
  info.set_name(name_for(node, caller, group));
  info.set_address(address_of(group));
  info.set_owner(to_string(group.account->owner()));
  info.set_state(to_proto(machine.state()));
  info.set_deep(machine.deep());
  info.set_partial(is_partial(node, group));
  if (group.stage != kNoStage) info.set_stage(group.stage);
  info.set_paused_by_stage(machine.state() == GroupState::kPaused && group.paused_by_stage);
  info.set_phase(std::string(phase_name(machine.phase())));
  info.set_uid(group.account->owner().uid);
  info.set_rank_count(static_cast<std::uint32_t>(machine.members().ids().size()));
  info.set_stopped_ranks(static_cast<std::uint32_t>(stopped_ranks(node, group).size()));
  const Usage usage = node.allocations.usage(group.id, [](const Allocation&) { return true; });
  info.set_allocation_count(usage.count);
  info.set_allocated_bytes(usage.allocated);
  info.set_resident_bytes(usage.resident);
  info.set_saved_bytes(usage.saved);
  info.set_pinned_bytes(usage.pinned);
  info.set_since_ms(to_us(Clock::now() - machine.since()) / 1000);
  if (const auto& pause = machine.last(Operation::kPause))
    info.set_last_pause_us(to_us(pause->total));
  if (const auto& resume = machine.last(Operation::kResume))
    info.set_last_resume_us(to_us(resume->total));
  info.set_note(group.waits_for.empty() ? machine.note() : "waits: " + group.waits_for);
  info.set_lost(lost_ranks(group));
  std::map<std::string, v1::TagPolicy> policies;
  std::map<std::string, v1::TagUsage> tags;
  std::map<DeviceUuid, Usage> devices;
  const OwnPool* const pool = node.pools.find(group.account);
  for (const Allocation* a : node.allocations.of_group(group.id)) {
    v1::TagUsage& tag = tags[a->tag];
    count(*a, group, tag);
    const std::uint64_t retained = pool != nullptr ? pool->retained.bytes(a->id) : 0;
    tag.set_retained_bytes(tag.retained_bytes() + retained);
    info.set_retained_bytes(info.retained_bytes() + retained);
    Usage& device = devices[a->device];
    device.allocated += a->size;
    if (a->resident()) device.resident += a->size;
  }
  for (const auto* set : {&group.rank_discards, &group.tag_discards})  // the operator's word last
    for (const auto& [tag, discard] : *set)
      policies[tag].set_policy(discard ? v1::POLICY_DISCARD : v1::POLICY_KEEP);
  for (const auto& [tag, form] : group.tag_forms) policies[tag].set_form(to_proto(form));
  for (auto& [tag, policy] : policies) {
    policy.set_tag(tag);
    info.add_policies()->Swap(&policy);
  }
  for (const auto& [uuid, device] : devices) {
    v1::GroupDeviceUsage* d = info.add_devices();
    d->set_uuid(to_string(uuid));
    d->set_allocated_bytes(device.allocated);
    d->set_resident_bytes(device.resident);
  }
  add_tags(tags, *info.mutable_tags());
  info.set_unbrokered_bytes(leftover(node, group, {}).unbrokered);
  info.set_dropped_bytes(dropped(node, group, {}));
  for (const GuestUse& use : guests_of(node.allocations, group.id))
    report_guest(node, use, *info.add_guests());
  for (const RankId rank : machine.members().ids())
    for (const GuestUse& use : opened_by(node.allocations, rank))
      report_guest(node, use, *info.add_opened());
}

void report_saves(const std::vector<TagSave>& saves,
                  google::protobuf::RepeatedPtrField<v1::TagSave>& messages) {
  for (const TagSave& save : saves) {
    v1::TagSave& message = *messages.Add();
    message.set_tag(save.tag);
    message.set_kept_bytes(save.kept);
    message.set_compared_bytes(save.compared);
    message.set_unchanged_bytes(save.unchanged);
    message.set_copied_bytes(save.copied);
    message.set_hashed(save.hashed);
  }
}

void report_memory(const MovedMemory& memory, v1::MovedMemory& message) {
  message.set_handed_on_bytes(memory.handed_on);
  message.set_made_bytes(memory.made);
  message.set_closed_bytes(memory.closed);
}

void report_guest(const Node& node, const GuestUse& use, v1::GuestUsage& message) {
  const auto name = [&](GroupId id) {
    const auto group = node.groups.find(id);
    return group != node.groups.end() ? group->second.machine.name() : std::string();
  };
  message.set_owner(name(use.owner));
  message.set_guest(name(use.guest.group));
  message.set_rank_id(use.guest.rank);
  const auto rank = node.ranks.find(use.guest.rank);
  message.set_rank(rank != node.ranks.end() ? rank->second.number : -1);
  if (rank != node.ranks.end()) message.set_pid(rank->second.peer.pid);
  message.set_tag(use.tag);
  message.set_allocation_count(use.count);
  message.set_bytes(use.bytes);
  message.set_paused(use.guest.paused);
}

std::string describe(const Node& node, const std::vector<GuestUse>& guests) {
  std::string text;
  for (const GuestUse& use : guests) {
    const Group& group = node.groups.at(use.guest.group).machine;
    text += (text.empty() ? "" : "; ") + group.members().label(use.guest.rank) + " of group '" +
            group.name() + "' has " + format_size(use.bytes) + " of tag '" + use.tag + "' open";
    if (use.guest.paused) text += " (that group is paused)";
  }
  return text;
}

Leftover leftover(const Node& node, const GroupEntry& group, const Selection& what) {
  Leftover stays;
  stays.pinned =
      node.allocations
          .usage(group.id,
                 [&](const Allocation& a) { return what.takes(a.tag, a.sharers) && a.pinned(); })
          .resident;
  std::set<std::string> unknown;
  for (RankId rank : group.machine.members().ids())
    for (const UnknownCall& call : node.ranks.at(rank).unknown_calls)
      if (call.fate != "listed") unknown.insert(call.name);  // it is signed off: nobody need look
  stays.unknown_calls = static_cast<std::uint32_t>(unknown.size());
  if (!what.all() || group.machine.deep()) return stays;
  for (RankId rank : group.machine.members().ids())
    for (const Unbrokered& u : node.ranks.at(rank).unbrokered)
      stays.unbrokered += u.host ? 0 : u.bytes;
  return stays;
}

std::uint64_t dropped(const Node& node, const GroupEntry& group, const Selection& what) {
  return node.allocations
      .usage(group.id,
             [&](const Allocation& a) { return what.takes(a.tag, a.sharers) && a.dropped(); })
      .allocated;
}

namespace {

/// The group of this name; null for an empty name, which means all.
Result<GroupEntry*> group_or_all(Node& node, const Caller& caller, const std::string& name) {
  return name.empty() ? Result<GroupEntry*>(nullptr) : find_group(node, caller, name);
}

void report_groups(const Node& node, const Caller& caller,
                   google::protobuf::RepeatedPtrField<v1::GroupInfo>& infos) {
  for (const auto& [id, group] : node.groups)
    if (caller.may_see(*group.account)) report_group(node, caller, group, *infos.Add());
}

void report_times(const Totals& totals, v1::NodeStatus& status) {
  for (const auto& [what, histogram] : totals.times()) {
    v1::TimeHistogram* h = status.add_times();
    h->set_operation(std::string(what.first));
    h->set_phase(std::string(phase_name(what.second)));
    h->set_count(histogram.count());
    h->set_sum_us(histogram.sum());
    for (std::uint64_t us : histogram.bounds()) h->add_bounds_us(us);
    for (std::uint64_t n : histogram.buckets()) h->add_buckets(n);
  }
}

}  // namespace

void Reports::status(const Caller& caller, v1::NodeStatus& status) const {
  status.set_version(kVersion);
  status.set_session_protocol(kProtocolVersion);
  status.set_pid(::getpid());
  status.set_uptime_ms(to_us(Clock::now() - began) / 1000);
  status.set_rss_bytes(resident_memory());
  for (const Device& device : devices.all()) {
    v1::DeviceStatus* d = status.add_devices();
    d->set_uuid(to_string(device.uuid));
    d->set_ordinal(device.ordinal);
    d->set_name(device.name);
    if (const auto use = workers.seen().find(device.uuid); use != workers.seen().end()) {
      d->set_usage_known(true);
      d->set_total_bytes(use->second.total);
      d->set_used_bytes(use->second.used);
    } else {
      d->set_total_bytes(device.total);
    }
    d->set_spare_bytes(workers.spares().bytes(device.uuid));
    d->set_trouble(workers.hangs(device.uuid));
    d->set_brokered_bytes(node.allocations
                              .usage([&](const Allocation& a) {
                                return a.device == device.uuid &&
                                       caller.may_see(*a.charge.account());
                              })
                              .resident);
  }
  v1::PoolStatus* pool = status.mutable_pool();
  pool->set_configured_bytes(node.pool_configured);
  pool->set_ready_bytes(node.pools.total());
  pool->set_elastic_bytes(node.pool_configured - node.pool_reserve);
  pool->set_used_bytes(
      node.pools.used([&](const Account& account) { return caller.may_see(account); }));
  pool->set_retained_bytes(
      node.pools.retained([&](const Account& account) { return caller.may_see(account); }));
  pool->set_place(node.pools.place());
  pool->set_error(node.pool_error);
  pool->set_unowned_bytes(node.pools.unowned());
  pool->set_segment_bytes(node.pools.largest_segment());
  report_shares(node, caller, *pool);
  report_groups(node, caller, *status.mutable_groups());
  if (caller.sees_all || caller.operates) report_times(node.totals, status);
}

void Reports::groups(const Caller& caller, v1::ListGroupsResponse& response) const {
  report_groups(node, caller, *response.mutable_groups());
}

Result<GroupCondition> Reports::condition(const Caller& caller, const std::string& name) const {
  if (Status status = check_whole_name(name.substr(0, name.find('@'))); !status.ok()) return status;
  const Result<GroupEntry*> found = find_group(node, caller, name);
  if (!found.ok()) return found.status();
  const GroupEntry& group = *found.value();
  const Group& machine = group.machine;
  GroupCondition condition;
  condition.name = name_for(node, caller, group);
  condition.state = state_of(machine.state());
  condition.phase = phase_name(machine.phase());
  condition.deep = machine.deep();
  condition.partial = is_partial(node, group);
  condition.ms = to_us(Clock::now() - machine.since()) / 1000;
  condition.ranks = static_cast<std::uint32_t>(machine.members().ids().size());
  condition.stopped = static_cast<std::uint32_t>(stopped_ranks(node, group).size());
  if (group.stage != kNoStage) condition.stage = group.stage;
  condition.paused_by_stage = machine.state() == GroupState::kPaused && group.paused_by_stage;
  condition.lost = lost_ranks(group);
  return condition;
}

Result<std::vector<v1::RankInfo>> Reports::ranks(const Caller& caller,
                                                 const std::string& name) const {
  const Result<GroupEntry*> found = group_or_all(node, caller, name);
  if (!found.ok()) return found.status();
  const GroupEntry* const only = found.value();
  struct Share {
    std::uint64_t owned = 0, imported = 0, opened = 0, count = 0;
    std::map<std::string, v1::TagUsage> tags;  // of what it owns
  };
  std::map<RankId, Share> shares;
  for (const Allocation* a : node.allocations.select([](const Allocation&) { return true; })) {
    for (RankId sharer : a->sharers) {
      Share& share = shares[sharer];
      ++share.count;
      (sharer == a->keeper() ? share.owned : share.imported) += a->size;
    }
    for (const Guest& guest : a->guests) shares[guest.rank].opened += a->size;
    if (a->group != kNoGroup) count(*a, node.groups.at(a->group), shares[a->keeper()].tags[a->tag]);
  }
  std::vector<v1::RankInfo> ranks;
  for (const auto& [id, rank] : node.ranks) {
    const auto entry = node.groups.find(rank.group);
    if (entry == node.groups.end()) continue;
    const GroupEntry& group = entry->second;
    const Group& machine = group.machine;
    if ((only != nullptr && only != &group) || !caller.may_see(*group.account)) continue;
    v1::RankInfo& info = ranks.emplace_back();
    info.set_id(id);
    info.set_group(name_for(node, caller, group));
    info.set_rank(rank.number);
    info.set_pid(rank.peer.pid);
    info.set_stopped(rank.peer.stopped());
    info.set_uid(rank.peer.uid);
    info.set_program(rank.program);
    info.set_shim_version(rank.shim_version);
    Share& share = shares[id];
    info.set_owned_bytes(share.owned);
    info.set_imported_bytes(share.imported);
    info.set_opened_bytes(share.opened);
    info.set_allocation_count(share.count);
    info.set_phase(std::string(machine.waiting_for(id)));
    for (const Unbrokered& u : rank.unbrokered) {
      v1::UnbrokeredUsage* usage = info.add_unbrokered();
      usage->set_uuid(to_string(u.device));
      usage->set_kind(u.kind);
      usage->set_bytes(u.bytes);
      usage->set_count(u.count);
      usage->set_host(u.host);
    }
    for (const UnknownCall& call : rank.unknown_calls) {
      v1::UnknownCall* told = info.add_unknown_calls();
      told->set_name(call.name);
      told->set_fate(call.fate);
      told->set_library(call.library);
    }
    add_tags(share.tags, *info.mutable_tags());
  }
  return ranks;
}

Result<AllocationList> Reports::list_allocations(const Caller& caller,
                                                 const std::string& name) const {
  const Result<GroupEntry*> group = group_or_all(node, caller, name);
  if (!group.ok()) return group.status();
  return group.value() == nullptr ? AllocationList() : AllocationList{.only = group.value()->id};
}

std::vector<v1::AllocationInfo> Reports::allocations(const Caller& caller, AllocationList& list,
                                                     std::size_t most, std::size_t bytes) const {
  const auto seen = [&](GroupId id) {
    if (list.only && *list.only != id) return false;
    const auto entry = node.groups.find(id);
    return entry != node.groups.end() && caller.may_see(*entry->second.account);
  };
  std::vector<v1::AllocationInfo> allocations;
  std::size_t taken = 0;
  for (const Allocation* a : node.allocations.some(seen, list.next, most)) {
    if (taken >= bytes) break;
    const GroupEntry& group = node.groups.at(a->group);
    v1::AllocationInfo& info = allocations.emplace_back();
    info.set_id(a->id);
    info.set_group(name_for(node, caller, group));
    info.set_owner(a->keeper());
    for (std::size_t i = 1; i < a->sharers.size(); ++i) info.add_peers(a->sharers[i]);
    for (const Guest& guest : a->guests) info.add_guests(guest.rank);
    info.set_device(to_string(a->device));
    info.set_size(a->size);
    info.set_tag(a->tag);
    info.set_policy(group.discards(*a) ? v1::POLICY_DISCARD : v1::POLICY_KEEP);
    info.set_resident(a->resident());
    info.set_pinned(a->pinned());
    for (const Pinner& pinner : a->pinners) {
      v1::Pinner& shown = *info.add_pinners();
      shown.set_rank(pinner.rank);
      shown.set_reason(std::string(to_string(pinner.reason)));
    }
    taken += sizeof info + info.ByteSizeLong();
    list.next = a->id + 1;
  }
  return allocations;
}

void Reports::quotas(const Caller& caller, v1::ListQuotasResponse& response) const {
  for (const auto& account : accounts.all()) {
    if (!caller.may_see(*account)) continue;
    v1::OwnerQuotas& owner = *response.add_owners();
    owner.set_owner(to_string(account->owner()));
    owner.set_uid(account->owner().uid);
    for (const Resource resource : kAllResources) {
      v1::Quota& quota = *owner.add_quotas();
      quota.set_resource(std::string(to_string(resource)));
      quota.set_used(account->used(resource));
      quota.set_limited(account->most(resource) != kNoQuota);
      if (quota.limited()) quota.set_most(account->most(resource));
      quota.set_bytes(is_bytes(resource));
      quota.set_refusals(account->refusals(resource));
    }
  }
}

void report_phase_times(const std::vector<PhaseTime>& times, const RankNumber& number,
                        google::protobuf::RepeatedPtrField<v1::PhaseTime>& messages) {
  for (const PhaseTime& time : times) {
    v1::PhaseTime& phase = *messages.Add();
    phase.set_phase(std::string(phase_name(time.phase)));
    phase.set_us(to_us(time.time));
    phase.set_broker_us(to_us(time.broker));
    phase.set_driver_us(to_us(time.driver));
    for (const RankTime& each : time.ranks) {
      v1::RankTime& rank = *phase.add_ranks();
      rank.set_id(each.rank);
      rank.set_rank(number(each.rank));
      rank.set_us(to_us(each.time));
      rank.set_busy_us(to_us(each.spent.busy));
      rank.set_bytes(each.copied);
      rank.set_copy_us(to_us(each.spent.copy));
      rank.set_import_us(to_us(each.spent.import));
      rank.set_map_us(to_us(each.spent.map));
      rank.set_access_us(to_us(each.spent.access));
      rank.set_unmap_us(to_us(each.spent.unmap));
      rank.set_release_us(to_us(each.spent.release));
      rank.set_handles(static_cast<std::uint32_t>(each.spent.handles));
    }
  }
}

Status Reports::history(const Caller& caller, const v1::ListHistoryRequest& request,
                        v1::ListHistoryResponse& response) const {
  std::vector<const PastOperation*> chosen;
  for (const PastOperation& past : node.history.all())
    if (may_see(caller, past) && asked_for(request, past)) chosen.push_back(&past);
  if (chosen.empty() && !request.group().empty() && request.transaction() == 0)
    if (const auto group = find_group(node, caller, request.group()); !group.ok())
      return group.status();
  const std::size_t skipped =
      request.most() > 0 && chosen.size() > request.most() ? chosen.size() - request.most() : 0;
  for (std::size_t i = skipped; i < chosen.size(); ++i) {
    v1::PastOperation& message = *response.add_operations();
    message.set_group(name_for(node.history, caller, *chosen[i]));
    report_past(*chosen[i], request.spans(), message);
    message.set_stage(chosen[i]->stage);
    if (!chosen[i]->of_several || caller.sees_all || caller.operates)
      message.set_why(chosen[i]->why);
  }
  return {};
}

}  // namespace amem
