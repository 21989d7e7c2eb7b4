// What amemctl shows people: messages of the control API as text. Pure functions, newline at the
// end of every line; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "client/ctl/views/text_table.h"
#include "common/readiness.h"

namespace amem::ctl {

GroupCondition condition_of(const v1::GroupInfo& group);
/// "running", "pausing (save)", "paused", ...
/// How many ranks it has, and how many of them are stopped.
std::string ranks_text(const v1::GroupInfo& group);
std::string state_text(const v1::GroupInfo& group);
Tone state_tone(v1::GroupState state);

/// "keep", "discard", "" when unspecified.
std::string policy_text(v1::Policy policy);
/// "auto", "dense", "sparse"; empty for none.
std::string form_text(v1::Form form);

std::string status_view(const v1::NodeStatus& status, const Style& style);
std::string groups_view(const v1::ListGroupsResponse& groups, const Style& style);
/// A name on each line: of a group the one that commands take, of a rank "train/3".
std::string names_view(const v1::ListGroupsResponse& groups);
std::string names_view(const v1::ListRanksResponse& ranks);
// With all that there is to show.
std::string wide_view(const v1::NodeStatus& status, const Style& style);
std::string wide_view(const v1::ListGroupsResponse& groups, const Style& style);
std::string wide_view(const v1::ListRanksResponse& ranks, const Style& style);
std::string quotas_view(const v1::ListQuotasResponse& quotas, const Style& style);
std::string ranks_view(const v1::ListRanksResponse& ranks, const Style& style);
std::string allocations_view(const std::vector<v1::AllocationInfo>& allocations,
                             const Style& style);

/// Totals of allocations by group, tag and device.
struct SummaryRow {
  std::string group;
  std::string tag;
  std::string device;  // UUID
  v1::Policy policy = v1::POLICY_UNSPECIFIED;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::uint64_t resident_bytes = 0;
  std::uint64_t pinned_bytes = 0;
};

class Summary {
 public:
  void add(const v1::AllocationInfo& allocation);
  /// In order of group, tag, device, policy.
  std::vector<SummaryRow> rows() const;

 private:
  // The policy is in the key: a tag's may have changed between two allocations.
  std::map<std::tuple<std::string, std::string, std::string, int>, SummaryRow> rows_;
};

std::string summary_view(const std::vector<SummaryRow>& rows, const Style& style);
/// One object on one line, with the names of SummaryRow's members.
std::string to_json(const SummaryRow& row);

/// "pause of weights, kv_cache".
std::string operation_text(const v1::PastOperation& operation);
/// A line for each operation, then the errors, in full.
std::string turns_view(const v1::TurnsResponse& turns, const Style& style);
std::string history_view(const v1::ListHistoryResponse& history, const Style& style);
/// What one node has answered.
struct NodeHistory {
  std::string node;  // empty: it is the only one
  v1::ListHistoryResponse history;
};

/// One line.
std::string event_line(const v1::Event& event, const Style& style);

// Parts of status_view that `top` arranges in its own way.
std::string node_line(const v1::NodeStatus& status, const Style& style);
std::string pool_line(const v1::PoolStatus& pool, const Style& style);
/// How long an operation took; "-" when there has been none.
std::string took(std::uint64_t us);
/// What the broker has to say of the group, on a line; empty when nothing.
std::string note_line(const v1::GroupInfo& group, const Style& style);

/// Of a pause that has ended: "64 MiB open in group 'rollout' (rank 0, pid 12, tag heap)", with
/// commas; empty when nothing stayed for guests.
std::string guest_text(const v1::Progress& progress);

}  // namespace amem::ctl
