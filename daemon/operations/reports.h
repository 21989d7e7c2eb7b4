// Reports: the broker's tables as messages of the control API. Reads only.
//
// For the loop's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/nvml.h"
#include "daemon/operations/histograms.h"
#include "daemon/operations/node.h"
#include "daemon/phases/task.h"

namespace amem {

v1::GroupState to_proto(GroupState state);
v1::SaveForm to_proto(SaveForm form);
/// Nothing for a number that is none of them.
std::optional<SaveForm> from_proto(v1::SaveForm form);

void report_group(const Node& node, const GroupEntry& group, v1::GroupInfo& info);
void report_node(const Node& node, const Devices& devices, const Nvml& nvml, Time began,
                 v1::NodeStatus& status);

/// What a pause of these leaves on the devices.
struct Leftover {
  std::uint64_t pinned = 0;
  std::uint64_t unbrokered = 0;  // of everything only: it has no tags
};
Leftover leftover(const Node& node, const GroupEntry& group, const Selection& what);
/// Bytes of these that are away and come back zeroed.
std::uint64_t dropped(const Node& node, const GroupEntry& group, const Selection& what);

void report_times(const Histograms& histograms, v1::NodeStatus& status);

void report_rank_time(const Node& node, const RankTime& time, v1::RankTime& message);

/// `group`: a name, or empty for all; a name that no group has: nothing.
std::vector<v1::RankInfo> report_ranks(const Node& node, const std::string& group);
std::vector<v1::AllocationInfo> report_allocations(const Node& node, const std::string& group);

}  // namespace amem
