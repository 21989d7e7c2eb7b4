#include "daemon/node/reports.h"

#include <unistd.h>

#include <set>
#include <string>

#include "common/protocol.h"
#include "common/version.h"
#include "daemon/base/units.h"
#include "daemon/memory/host_memory.h"
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

void report_group(const Node& node, const Caller& caller, const GroupEntry& group,
                  v1::GroupInfo& info) {
  const Group& machine = group.machine;
  info.set_name(name_for(node, caller, group));
  info.set_address(address_of(group));
  info.set_owner(to_string(group.account->owner()));
  info.set_state(to_proto(machine.state()));
  info.set_phase(std::string(phase_name(machine.phase())));
  info.set_uid(group.account->owner().uid);
  info.set_rank_count(static_cast<std::uint32_t>(machine.members().ids().size()));
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
  info.set_note(machine.note());
  std::map<std::string, v1::TagPolicy> policies;
  std::map<std::string, v1::TagUsage> tags;
  std::map<DeviceUuid, Usage> devices;
  for (const Allocation* a : node.allocations.of_group(group.id)) {
    count(*a, group, tags[a->tag]);
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
          .usage(group.id, [&](const Allocation& a) { return what.takes(a.tag) && a.pinned(); })
          .resident;
  std::set<std::string> unknown;
  for (RankId rank : group.machine.members().ids())
    for (const UnknownCall& call : node.ranks.at(rank).unknown_calls)
      if (call.fate != "listed") unknown.insert(call.name);  // it is signed off: nobody need look
  stays.unknown_calls = static_cast<std::uint32_t>(unknown.size());
  if (!what.all()) return stays;
  for (RankId rank : group.machine.members().ids())
    for (const Unbrokered& u : node.ranks.at(rank).unbrokered)
      stays.unbrokered += u.host ? 0 : u.bytes;
  return stays;
}

std::uint64_t dropped(const Node& node, const GroupEntry& group, const Selection& what) {
  return node.allocations
      .usage(group.id, [&](const Allocation& a) { return what.takes(a.tag) && a.dropped(); })
      .allocated;
}

void report_node(const Node& node, const Caller& caller, const Devices& devices,
                 const Workers& workers, Time began, v1::NodeStatus& status) {
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
  pool->set_used_bytes(
      node.pools.used([&](const Account& account) { return caller.may_see(account); }));
  pool->set_place(node.pools.place());
  pool->set_error(node.pool_error);
  for (const auto& [id, group] : node.groups)
    if (caller.may_see(*group.account)) report_group(node, caller, group, *status.add_groups());
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

std::vector<v1::RankInfo> report_ranks(const Node& node, const Caller& caller,
                                       const GroupEntry* only) {
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

std::vector<v1::AllocationInfo> report_allocations(const Node& node, const Caller& caller,
                                                   AllocationList& list, std::size_t most,
                                                   std::size_t bytes) {
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

void report_quotas(const Accounts& accounts, const Caller& caller,
                   v1::ListQuotasResponse& response) {
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

}  // namespace amem
