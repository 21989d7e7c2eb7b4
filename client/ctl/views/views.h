// What amemctl shows people: messages of the control API as text. Pure functions, newline at the
// end of every line; any thread.
#pragma once

#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "client/ctl/views/summary.h"
#include "client/ctl/views/text_table.h"

namespace amem::ctl {

/// "running", "pausing (save)", "paused", ...
std::string state_text(const v1::GroupInfo& group);
Tone state_tone(v1::GroupState state);

/// "keep", "discard", "" when unspecified.
std::string policy_text(v1::Policy policy);
/// "auto", "dense", "sparse"; empty for none.
std::string form_text(v1::Form form);

std::string status_view(const v1::NodeStatus& status, const Style& style);
std::string groups_view(const v1::ListGroupsResponse& groups, const Style& style);
std::string quotas_view(const v1::ListQuotasResponse& quotas, const Style& style);
std::string ranks_view(const v1::ListRanksResponse& ranks, const Style& style);
std::string allocations_view(const std::vector<v1::AllocationInfo>& allocations,
                             const Style& style);
std::string summary_view(const std::vector<SummaryRow>& rows, const Style& style);

/// One line.
std::string event_line(const v1::Event& event, const Style& style);

// Parts of status_view that `top` arranges in its own way.
std::string node_line(const v1::NodeStatus& status, const Style& style);
std::string pool_line(const v1::PoolStatus& pool, const Style& style);

}  // namespace amem::ctl
