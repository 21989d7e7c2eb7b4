#include "client/ctl/views/views.h"

#include <google/protobuf/repeated_ptr_field.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>

#include "client/core/code_name.h"
#include "client/core/json.h"
#include "client/ctl/views/device_names.h"
#include "client/ctl/views/format.h"
#include "common/form.h"
#include "common/times.h"

namespace amem::ctl {
namespace {

using Groups = google::protobuf::RepeatedPtrField<v1::GroupInfo>;

std::string none(std::string_view what) { return "no " + std::string(what) + "\n"; }

/// A table that stands below another one; nothing when it is empty.
std::string below(const TextTable& table, const Style& style) {
  return table.empty() ? std::string() : "\n" + table.render(style);
}

std::string rank_text(std::int32_t rank) { return rank < 0 ? "-" : std::to_string(rank); }

std::string group_table(const Groups& groups, const Style& style) {
  if (groups.empty()) return none("groups");
  TextTable table({{"GROUP"},
                   {"STATE"},
                   {"SINCE", kRight},
                   {"UID", kRight},
                   {"RANKS", kRight},
                   {"ALLOCS", kRight},
                   {"ALLOCATED", kRight},
                   {"RESIDENT", kRight},
                   {"SAVED", kRight},
                   {"DROPPED", kRight},
                   {"PINNED", kRight},
                   {"UNBROKERED", kRight},
                   {"LAST PAUSE", kRight},
                   {"LAST RESUME", kRight},
                   {"NOTE"}});
  for (const v1::GroupInfo& group : groups) {
    table.add({group.name(),
               {state_text(group), state_tone(group.state())},
               format_age(group.since_ms()),
               std::to_string(group.uid()),
               ranks_text(group),
               std::to_string(group.allocation_count()),
               format_bytes(group.allocated_bytes()),
               format_bytes(group.resident_bytes()),
               format_bytes(group.saved_bytes()),
               format_bytes(group.dropped_bytes()),
               format_bytes(group.pinned_bytes()),
               format_bytes(group.unbrokered_bytes()),
               took(group.last_pause_us()),
               took(group.last_resume_us()),
               {group.note(), Tone::kBad}});
  }
  return table.render(style);
}

/// The groups in 80 columns, where their names are no longer than 15; `groups` has the rest.
std::string group_lines(const Groups& groups, const Style& style) {
  if (groups.empty()) return none("groups");
  TextTable table({{"GROUP"},
                   {"STATE"},
                   {"RANKS", kRight},
                   {"RESIDENT", kRight},
                   {"SAVED", kRight},
                   {"PAUSE", kRight},
                   {"RESUME", kRight}});
  std::string notes;
  for (const v1::GroupInfo& group : groups) {
    table.add({group.name(),
               {state_text(group), state_tone(group.state())},
               ranks_text(group),
               format_bytes(group.resident_bytes()),
               format_bytes(group.saved_bytes()),
               took(group.last_pause_us()),
               took(group.last_resume_us())});
    notes += note_line(group, style);
  }
  return table.render(style) + notes;
}

/// What `pause` does by tag, and how, where somebody has decided: empty when nowhere.
std::string policy_lines(const Groups& groups, const Style& style) {
  TextTable table({{"GROUP"}, {"TAG"}, {"POLICY"}, {"SAVE"}});
  for (const v1::GroupInfo& group : groups) {
    for (const v1::TagPolicy& policy : group.policies()) {
      table.add(
          {group.name(), policy.tag(), policy_text(policy.policy()), form_text(policy.form())});
    }
  }
  return below(table, style);
}

std::string group_tag_table(const Groups& groups, const Style& style) {
  TextTable table({{"GROUP"},
                   {"TAG"},
                   {"ALLOCS", kRight},
                   {"ALLOCATED", kRight},
                   {"RESIDENT", kRight},
                   {"SAVED", kRight},
                   {"DROPPED", kRight},
                   {"PINNED", kRight},
                   {"DISCARDED", kRight},
                   {"RETAINED", kRight}});
  for (const v1::GroupInfo& group : groups) {
    for (const v1::TagUsage& usage : group.tags()) {
      table.add({group.name(), usage.tag(), std::to_string(usage.allocation_count()),
                 format_bytes(usage.allocated_bytes()), format_bytes(usage.resident_bytes()),
                 format_bytes(usage.saved_bytes()), format_bytes(usage.dropped_bytes()),
                 format_bytes(usage.pinned_bytes()), format_bytes(usage.discard_bytes()),
                 format_bytes(usage.retained_bytes())});
    }
  }
  return below(table, style);
}

/// Memory that stays through a pause, of devices and of the host, by kind: empty when there is
/// none.
std::string unbrokered_table(const v1::ListRanksResponse& ranks, const Style& style) {
  DeviceNames names;
  for (const v1::RankInfo& rank : ranks.ranks()) {
    for (const v1::UnbrokeredUsage& usage : rank.unbrokered()) names.add(usage.uuid());
  }
  TextTable table({{"ID", kRight},
                   {"GROUP"},
                   {"DEVICE"},
                   {"UNBROKERED"},
                   {"ALLOCS", kRight},
                   {"SIZE", kRight}});
  for (const v1::RankInfo& rank : ranks.ranks()) {
    for (const v1::UnbrokeredUsage& usage : rank.unbrokered()) {
      table.add({std::to_string(rank.id()), rank.group(), names(usage.uuid()), usage.kind(),
                 std::to_string(usage.count()), format_bytes(usage.bytes())});
    }
  }
  return below(table, style);
}

/// Driver calls that ranks' shims do not know: empty when there are none.
std::string unknown_calls_table(const v1::ListRanksResponse& ranks, const Style& style) {
  TextTable table({{"ID", kRight}, {"GROUP"}, {"UNKNOWN DRIVER CALL"}, {"FATE"}, {"LIBRARY"}});
  for (const v1::RankInfo& rank : ranks.ranks())
    for (const v1::UnknownCall& call : rank.unknown_calls())
      table.add({std::to_string(rank.id()), rank.group(), call.name(), call.fate(),
                 call.library().empty() ? "-" : call.library()});
  return below(table, style);
}

std::uint64_t unbrokered_bytes(const v1::RankInfo& rank) {
  std::uint64_t bytes = 0;
  for (const v1::UnbrokeredUsage& usage : rank.unbrokered())
    if (!usage.host()) bytes += usage.bytes();
  return bytes;
}

std::string group_device_table(const Groups& groups, const Style& style) {
  DeviceNames names;
  for (const v1::GroupInfo& group : groups) {
    for (const v1::GroupDeviceUsage& usage : group.devices()) names.add(usage.uuid());
  }
  TextTable table({{"GROUP"}, {"DEVICE"}, {"ALLOCATED", kRight}, {"RESIDENT", kRight}});
  for (const v1::GroupInfo& group : groups) {
    for (const v1::GroupDeviceUsage& usage : group.devices()) {
      table.add({group.name(), names(usage.uuid()), format_bytes(usage.allocated_bytes()),
                 format_bytes(usage.resident_bytes())});
    }
  }
  return below(table, style);
}

std::string device_table(const v1::NodeStatus& status, const Style& style) {
  if (status.devices().empty()) return none("devices");
  TextTable table({{"DEVICE", kRight},
                   {"NAME"},
                   {"TOTAL", kRight},
                   {"USED", kRight},
                   {"BROKERED", kRight},
                   {"UUID"}});
  DeviceNames names;
  for (const v1::DeviceStatus& device : status.devices()) names.add(device.uuid());
  for (const v1::DeviceStatus& device : status.devices()) {
    const bool known = device.usage_known();
    table.add({std::to_string(device.ordinal()), device.name(),
               known ? format_bytes(device.total_bytes()) : "?",
               known ? format_bytes(device.used_bytes()) : "?",
               format_bytes(device.brokered_bytes()), names(device.uuid())});
  }
  std::string text = table.render(style);
  for (const v1::DeviceStatus& device : status.devices())
    if (!device.trouble().empty())
      text += "device " + std::to_string(device.ordinal()) + " hangs: " + device.trouble() + "\n";
  return text;
}

/// Memory that ranks of one group have opened of another, each once: empty when there is none.
std::string guest_table(const Groups& groups, const Style& style) {
  TextTable table({{"GUEST"},
                   {"RANK", kRight},
                   {"PID", kRight},
                   {"HAS OPENED OF"},
                   {"TAG"},
                   {"ALLOCS", kRight},
                   {"SIZE", kRight},
                   {"GUEST IS"}});
  // The owner's list and the guest's have the same entries.
  std::set<std::tuple<std::string, std::uint32_t, std::string>> seen;
  for (const v1::GroupInfo& group : groups) {
    for (const auto* list : {&group.guests(), &group.opened()}) {
      for (const v1::GuestUsage& usage : *list) {
        if (!seen.emplace(usage.owner(), usage.rank_id(), usage.tag()).second) continue;
        table.add({usage.guest(), rank_text(usage.rank()), std::to_string(usage.pid()),
                   usage.owner().empty() ? "(freed by its group)" : usage.owner(), usage.tag(),
                   std::to_string(usage.allocation_count()), format_bytes(usage.bytes()),
                   usage.paused() ? "paused" : "running"});
      }
    }
  }
  return below(table, style);
}

/// "save 21.3 ms": the phase that took longest.
std::string longest(const v1::PastOperation& operation) {
  const auto& times = operation.times();
  const auto most = std::max_element(times.begin(), times.end(),
                                     [](const auto& a, const auto& b) { return a.us() < b.us(); });
  return most == times.end() ? "-" : most->phase() + " " + format_micros(most->us());
}

std::string transaction_of(const v1::PastOperation& operation) {
  if (operation.transaction() == 0) return "ranks";
  const char* const what = operation.swap() ? " swap" : operation.by_broker() ? " amemd" : "";
  return std::to_string(operation.transaction()) + what;
}

}  // namespace

std::string ranks_text(const v1::GroupInfo& group) {
  const std::string all = std::to_string(group.rank_count());
  return group.stopped_ranks() == 0
             ? all
             : all + " (" + std::to_string(group.stopped_ranks()) + " stopped)";
}

GroupCondition condition_of(const v1::GroupInfo& group) {
  using State = GroupCondition::State;
  GroupCondition condition;
  condition.name = group.name();
  condition.state = group.state() == v1::GROUP_STATE_RUNNING    ? State::kRunning
                    : group.state() == v1::GROUP_STATE_PAUSING  ? State::kPausing
                    : group.state() == v1::GROUP_STATE_PAUSED   ? State::kPaused
                    : group.state() == v1::GROUP_STATE_RESUMING ? State::kResuming
                                                                : State::kUnknown;
  condition.phase = group.phase();
  condition.deep = group.deep();
  condition.partial = group.partial();
  condition.ms = group.since_ms();
  condition.ranks = group.rank_count();
  condition.stopped = group.stopped_ranks();
  condition.stage = group.stage();
  condition.paused_by_stage = group.paused_by_stage();
  condition.lost = group.lost();
  condition.note = group.note();
  return condition;
}

std::string state_text(const v1::GroupInfo& group) { return state_text(condition_of(group)); }

Tone state_tone(v1::GroupState state) {
  switch (state) {
    case v1::GROUP_STATE_RUNNING:
      return Tone::kGood;
    case v1::GROUP_STATE_PAUSING:
    case v1::GROUP_STATE_RESUMING:
      return Tone::kBusy;
    case v1::GROUP_STATE_PAUSED:
      return Tone::kIdle;
    default:
      return Tone::kPlain;
  }
}

std::string policy_text(v1::Policy policy) {
  switch (policy) {
    case v1::POLICY_KEEP:
      return "keep";
    case v1::POLICY_DISCARD:
      return "discard";
    default:
      return "";
  }
}

std::string form_text(v1::Form form) {
  const std::optional<Form> known = form_of(static_cast<std::uint32_t>(form));
  return known ? std::string(to_string(*known)) : "";
}

std::string node_line(const v1::NodeStatus& status, const Style& style) {
  return style(Tone::kBold, "amemd " + printable(status.version())) + "  pid " +
         std::to_string(status.pid()) + "  up " + format_age(status.uptime_ms()) + "  memory " +
         format_bytes(status.rss_bytes()) + "\n";
}

std::string pool_line(const v1::PoolStatus& pool, const Style& style) {
  std::string line = style(Tone::kBold, "pool");
  line += "  " + format_bytes(pool.used_bytes()) + " used of " + format_bytes(pool.ready_bytes());
  if (pool.retained_bytes() > 0) line += ", " + format_bytes(pool.retained_bytes()) + " retained";
  if (pool.elastic_bytes() > 0)
    line += " pinned, at most " + format_bytes(pool.configured_bytes()) + ", at least " +
            format_bytes(pool.configured_bytes() - pool.elastic_bytes());
  else if (pool.ready_bytes() != pool.configured_bytes())
    line += " ready, " + format_bytes(pool.configured_bytes()) + " configured";
  if (pool.ready_bytes() > pool.configured_bytes())
    line += "  " + style(Tone::kBusy, "shrinks as jobs end");
  if (!pool.place().empty()) line += "  " + printable(pool.place());
  if (!pool.error().empty()) line += "  " + style(Tone::kBad, printable(pool.error()));
  return line + "\n";
}

std::string took(std::uint64_t us) { return us == 0 ? "-" : format_micros(us); }

std::string note_line(const v1::GroupInfo& group, const Style& style) {
  if (group.note().empty()) return {};
  return style(Tone::kBad, printable(group.name() + ": " + group.note())) + "\n";
}

std::string guest_text(const v1::Progress& progress) {
  std::string text;
  for (const v1::GuestUsage& usage : progress.guests()) {
    text += (text.empty() ? "" : ", ") + format_bytes(usage.bytes()) + " open in group '" +
            printable(usage.guest()) + "' (rank " + rank_text(usage.rank()) + ", pid " +
            std::to_string(usage.pid()) + ", tag " + printable(usage.tag()) + ")";
  }
  return text;
}

std::string status_view(const v1::NodeStatus& status, const Style& style) {
  return node_line(status, style) + pool_line(status.pool(), style) + "\n" +
         device_table(status, style) + "\n" + group_lines(status.groups(), style) +
         guest_table(status.groups(), style);
}

std::string groups_view(const v1::ListGroupsResponse& groups, const Style& style) {
  return group_table(groups.groups(), style) + group_device_table(groups.groups(), style) +
         group_tag_table(groups.groups(), style) + policy_lines(groups.groups(), style) +
         guest_table(groups.groups(), style);
}

std::string names_view(const v1::ListGroupsResponse& groups) {
  std::string text;
  for (const v1::GroupInfo& group : groups.groups()) text += printable(group.name()) + "\n";
  return text;
}

std::string names_view(const v1::ListRanksResponse& ranks) {
  std::string text;
  for (const v1::RankInfo& rank : ranks.ranks())
    text += printable(rank.group()) + "/" +
            (rank.rank() < 0 ? "pid-" + std::to_string(rank.pid()) : rank_text(rank.rank())) + "\n";
  return text;
}

std::string wide_view(const v1::NodeStatus& status, const Style& style) {
  v1::ListGroupsResponse groups;
  *groups.mutable_groups() = status.groups();
  return node_line(status, style) + pool_line(status.pool(), style) + "\n" +
         device_table(status, style) + "\n" + wide_view(groups, style);
}

std::string wide_view(const v1::ListGroupsResponse& groups, const Style& style) {
  TextTable owners({{"GROUP"}, {"ADDRESS"}, {"OWNER"}});
  for (const v1::GroupInfo& group : groups.groups())
    owners.add({group.name(), group.address(), group.owner()});
  return groups_view(groups, style) + below(owners, style);
}

std::string wide_view(const v1::ListRanksResponse& ranks, const Style& style) {
  TextTable table({{"ID", kRight},
                   {"GROUP"},
                   {"TAG"},
                   {"ALLOCS", kRight},
                   {"ALLOCATED", kRight},
                   {"RESIDENT", kRight},
                   {"SAVED", kRight},
                   {"PINNED", kRight}});
  TextTable opened({{"ID", kRight}, {"GROUP"}, {"OPENED OF OTHERS", kRight}});
  for (const v1::RankInfo& rank : ranks.ranks()) {
    const std::string id = std::to_string(rank.id());
    for (const v1::TagUsage& tag : rank.tags())
      table.add({id, rank.group(), tag.tag(), std::to_string(tag.allocation_count()),
                 format_bytes(tag.allocated_bytes()), format_bytes(tag.resident_bytes()),
                 format_bytes(tag.saved_bytes()), format_bytes(tag.pinned_bytes())});
    if (rank.opened_bytes() > 0) opened.add({id, rank.group(), format_bytes(rank.opened_bytes())});
  }
  return ranks_view(ranks, style) + below(table, style) + below(opened, style);
}

std::string quotas_view(const v1::ListQuotasResponse& quotas, const Style& style) {
  if (quotas.owners().empty()) return none("owners");
  const auto amount = [](const v1::Quota& quota, std::uint64_t value) {
    return quota.bytes() ? format_bytes(value) : std::to_string(value);
  };
  TextTable table(
      {{"OWNER"}, {"RESOURCE"}, {"USED", kRight}, {"MOST", kRight}, {"REFUSED", kRight}});
  for (const v1::OwnerQuotas& owner : quotas.owners()) {
    for (const v1::Quota& quota : owner.quotas()) {
      const bool full = quota.limited() && quota.used() >= quota.most();
      table.add({owner.owner(),
                 quota.resource(),
                 {amount(quota, quota.used()), full ? Tone::kBad : Tone::kPlain},
                 quota.limited() ? amount(quota, quota.most()) : "-",
                 std::to_string(quota.refusals())});
    }
  }
  return table.render(style);
}

std::string ranks_view(const v1::ListRanksResponse& ranks, const Style& style) {
  if (ranks.ranks().empty()) return none("ranks");
  TextTable table({{"ID", kRight},
                   {"GROUP"},
                   {"RANK", kRight},
                   {"PID", kRight},
                   {"UID", kRight},
                   {"PROGRAM"},
                   {"ALLOCS", kRight},
                   {"OWNED", kRight},
                   {"IMPORTED", kRight},
                   {"UNBROKERED", kRight},
                   {"SHIM"},
                   {"WAITS FOR"}});
  for (const v1::RankInfo& rank : ranks.ranks()) {
    table.add({std::to_string(rank.id()),
               rank.group(),
               rank_text(rank.rank()),
               std::to_string(rank.pid()),
               std::to_string(rank.uid()),
               rank.program(),
               std::to_string(rank.allocation_count()),
               format_bytes(rank.owned_bytes()),
               format_bytes(rank.imported_bytes()),
               format_bytes(unbrokered_bytes(rank)),
               rank.shim_version(),
               {rank.stopped() ? "stopped" : rank.phase(), Tone::kBusy}});
  }
  return table.render(style) + unbrokered_table(ranks, style) + unknown_calls_table(ranks, style);
}

std::string allocations_view(const std::vector<v1::AllocationInfo>& allocations,
                             const Style& style) {
  if (allocations.empty()) return none("allocations");
  DeviceNames names;
  for (const auto& allocation : allocations) names.add(allocation.device());
  TextTable table({{"ID", kRight},
                   {"GROUP"},
                   {"DEVICE"},
                   {"SIZE", kRight},
                   {"TAG"},
                   {"POLICY"},
                   {"WHERE"},
                   {"OWNER", kRight},
                   {"PEERS"}});
  for (const auto& allocation : allocations) {
    std::string peers;
    for (const std::uint32_t peer : allocation.peers()) {
      peers += (peers.empty() ? "" : ",") + std::to_string(peer);
    }
    std::string where = allocation.resident() ? "device" : "released";
    if (allocation.guests_size() > 0) where = "device, opened";
    if (allocation.pinned()) where = "device, pinned";
    std::string why;
    for (const v1::Pinner& pinner : allocation.pinners())
      why += (why.empty() ? " (" : ", ") + printable(pinner.reason()) + " of " +
             std::to_string(pinner.rank());
    if (!why.empty()) where += why + ")";
    table.add({std::to_string(allocation.id()),
               allocation.group(),
               names(allocation.device()),
               format_bytes(allocation.size()),
               allocation.tag(),
               policy_text(allocation.policy()),
               {where, allocation.resident() ? Tone::kGood : Tone::kIdle},
               std::to_string(allocation.owner()),
               peers});
  }
  return table.render(style);
}

void Summary::add(const v1::AllocationInfo& allocation) {
  SummaryRow& row = rows_[{allocation.group(), allocation.tag(), allocation.device(),
                           static_cast<int>(allocation.policy())}];
  row.group = allocation.group();
  row.tag = allocation.tag();
  row.device = allocation.device();
  row.policy = allocation.policy();
  row.count += 1;
  row.bytes += allocation.size();
  if (allocation.resident()) row.resident_bytes += allocation.size();
  if (allocation.pinned()) row.pinned_bytes += allocation.size();
}

std::vector<SummaryRow> Summary::rows() const {
  std::vector<SummaryRow> rows;
  for (const auto& [key, row] : rows_) rows.push_back(row);
  return rows;
}

std::string summary_view(const std::vector<SummaryRow>& rows, const Style& style) {
  if (rows.empty()) return none("allocations");
  DeviceNames names;
  for (const SummaryRow& row : rows) names.add(row.device);
  TextTable table({{"GROUP"},
                   {"TAG"},
                   {"DEVICE"},
                   {"POLICY"},
                   {"ALLOCS", kRight},
                   {"SIZE", kRight},
                   {"RESIDENT", kRight},
                   {"PINNED", kRight}});
  for (const SummaryRow& row : rows) {
    table.add({row.group, row.tag, names(row.device), policy_text(row.policy),
               std::to_string(row.count), format_bytes(row.bytes), format_bytes(row.resident_bytes),
               format_bytes(row.pinned_bytes)});
  }
  return table.render(style);
}

std::string to_json(const SummaryRow& row) {
  return client::text_of({{"group", row.group},
                          {"tag", row.tag},
                          {"device", row.device},
                          {"policy", v1::Policy_Name(row.policy)},
                          {"count", row.count},
                          {"bytes", row.bytes},
                          {"resident_bytes", row.resident_bytes},
                          {"pinned_bytes", row.pinned_bytes}});
}

std::string operation_text(const v1::PastOperation& operation) {
  const std::string kind = operation.deep() ? "deep " : operation.partial() ? "partial " : "";
  return kind + operation.operation() + (operation.tags().empty() ? "" : " of " + operation.tags());
}

namespace {

Tone turn_tone(const std::string& turn) {
  if (turn == "runs" || turn == "starts") return Tone::kGood;
  if (turn == "waits") return Tone::kBusy;
  return turn == "apart" ? Tone::kBad : Tone::kIdle;
}

/// "why (took 341 ms)".
std::string switch_line(const v1::StageSwitch& last, const Style& style) {
  std::string line =
      "  last switch, " + format_time(last.began_us() / 1000) + ": " + printable(last.why()) + "; ";
  if (last.us() == 0) return line + "under way\n";
  if (last.code() == 0) return line + "it took " + format_micros(last.us()) + "\n";
  return line + style(Tone::kBad, "it has failed") + ": " + printable(last.error()) + "\n";
}

/// What leaves first, and so on; empty: nobody has set that.
std::string parts_line(const v1::TurnInfo& group) {
  std::string text;
  const auto add = [&text](const char* what, const auto& tags) {
    for (int i = 0; i < tags.size(); ++i)
      text += (i > 0 ? ", " : (text.empty() ? "" : "; ") + std::string(what)) + tags[i];
  };
  add("leaves first: ", group.leave_first());
  add("returns first: ", group.return_order());
  if (group.stays_bytes() > 0)
    text += (text.empty() ? "" : "; ") + format_bytes(group.stays_bytes()) + " still on a GPU";
  return text.empty() ? text : "  " + printable(group.group()) + ": " + printable(text) + "\n";
}

}  // namespace

std::string turns_view(const v1::TurnsResponse& turns, const Style& style) {
  if (turns.stages().empty()) return none("stages");
  std::string text;
  for (const v1::StageInfo& stage : turns.stages()) {
    std::string gpus;
    for (const v1::StageDevice& device : stage.devices())
      gpus += (gpus.empty() ? "" : ",") + std::to_string(device.ordinal());
    if (!text.empty()) text += "\n";
    text += style(Tone::kBold, printable(stage.name())) + "  policy " + stage.policy() + ", GPUs " +
            gpus + ", " + std::to_string(stage.switches()) + " switches, " +
            format_micros(stage.switching_us()) + " in switches\n";
    TextTable table({{"GROUP"},
                     {"TURN"},
                     {"FOR", kRight},
                     {"NEEDS", kRight},
                     {"WEIGHT", kRight},
                     {"PRIORITY", kRight},
                     {"RAN", kRight},
                     {"CALL"}});
    std::string notes;
    for (const v1::TurnInfo& group : stage.groups()) {
      const std::uint64_t there = std::max<std::uint64_t>(group.there_ms(), 1);
      table.add({group.group(),
                 {group.turn() + (group.leased() ? ", leased" : ""), turn_tone(group.turn())},
                 group.since_ms() > 0 ? format_age(group.since_ms()) : "-",
                 format_bytes(group.needs_bytes()),
                 std::to_string(group.weight()),
                 std::to_string(group.priority()),
                 std::to_string(group.ran_ms() * 100 / there) + " %",
                 group.call().empty() ? "-" : group.call()});
      if (!group.note().empty())
        notes += "  " + printable(group.group()) + ": " + printable(group.note()) + "\n";
      std::string pids;
      for (const std::int32_t pid : group.pids())
        pids += (pids.empty() ? "" : ", ") + std::to_string(pid);
      if (!pids.empty())
        notes += "  " + printable(group.group()) + ": pid " + pids + " starts it\n";
      notes += parts_line(group);
    }
    if (!table.empty()) text += table.render(style);
    text += notes;
    if (stage.has_last()) text += switch_line(stage.last(), style);
  }
  return text;
}

std::string history_view(const v1::ListHistoryResponse& history, const Style& style) {
  if (history.operations().empty()) return "no operations since amemd started\n";
  TextTable table({{"BEGAN"},
                   {"TRANSACTION"},
                   {"GROUP"},
                   {"OPERATION"},
                   {"TOOK", kRight},
                   {"COPIED", kRight},
                   {"HANDED ON", kRight},
                   {"LONGEST PHASE"},
                   {"RESULT"}});
  std::string errors;
  std::string reasons;
  std::set<std::uint64_t> told;  // transactions
  for (const v1::PastOperation& operation : history.operations()) {
    const std::string began = format_time(operation.began_us() / 1000);
    const bool ok = operation.code() == 0;
    table.add({began,
               transaction_of(operation),
               operation.group(),
               operation_text(operation),
               format_micros(operation.us()),
               format_bytes(operation.bytes()),
               format_bytes(operation.memory().handed_on_bytes()),
               longest(operation),
               {ok ? "ok" : client::code_name(static_cast<int>(operation.code())),
                ok ? Tone::kGood : Tone::kBad}});
    if (!ok) errors += began + "  " + printable(operation.error()) + "\n";
    if (!operation.why().empty() && told.insert(operation.transaction()).second)
      reasons += began + "  stage " + printable(operation.stage()) + ": " +
                 printable(operation.why()) + "\n";
  }
  if (!reasons.empty()) reasons = "\n" + reasons;
  return table.render(style) + reasons + (errors.empty() ? "" : "\n" + errors);
}

std::string event_line(const v1::Event& event, const Style& style) {
  std::string line = style(Tone::kDim, format_time(event.time_ms()));
  if (event.lost()) {
    const std::string many = event.missed() > 0 ? std::to_string(event.missed()) + " " : "";
    line += "  " + style(Tone::kBad, "(" + many + "events before this one were lost)");
  }
  if (!event.group().empty()) line += "  " + printable(event.group());
  std::string text = printable(event.text());
  if (event.kind() == "state") {
    v1::GroupInfo group;
    group.set_state(event.state());
    const std::string state = state_text(group);
    line += "  " + style(state_tone(event.state()), state);
    if (text == state) text.clear();
  } else {
    line +=
        "  " + style(event.kind() == "error" ? Tone::kBad : Tone::kPlain, printable(event.kind()));
  }
  if (!text.empty()) line += "  " + text;
  return line + "\n";
}

}  // namespace amem::ctl
