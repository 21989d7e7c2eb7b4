// Reports: the broker's tables, and operations that have ended, as messages of the control API.
// Reads only.
//
// For the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "common/readiness.h"
#include "common/status.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/workers.h"
#include "daemon/node/node.h"
#include "daemon/owners/account.h"
#include "daemon/owners/caller.h"
#include "daemon/phases/phase_times.h"
#include "daemon/phases/task.h"
#include "daemon/plans/guests.h"

namespace amem {

v1::GroupState to_proto(GroupState state);
v1::Form to_proto(Form form);
/// Nothing for a number that is none of them.
std::optional<Form> from_proto(v1::Form form);

// Fills in what a caller is told: of groups that it may see, by the names by which it can call
// them.
void report_group(const Node& node, const Caller& caller, const GroupEntry& group,
                  v1::GroupInfo& info);

/// What a pause of these leaves on the devices.
struct Leftover {
  std::uint64_t pinned = 0;
  std::uint64_t unbrokered = 0;  // of everything only: it has no tags
  // Different ones, of all ranks, without those that are signed off; whatever the tags.
  std::uint32_t unknown_calls = 0;
};
Leftover leftover(const Node& node, const GroupEntry& group, const Selection& what);
/// Returns the bytes of these that are paused and return zeroed.
std::uint64_t dropped(const Node& node, const GroupEntry& group, const Selection& what);

/// Names of groups as their owner, who is the guests' too, calls them.
/// Adds one TagSave for each to `messages`.
void report_saves(const std::vector<TagSave>& saves,
                  google::protobuf::RepeatedPtrField<v1::TagSave>& messages);
void report_memory(const MovedMemory& memory, v1::MovedMemory& message);
void report_guest(const Node& node, const GuestUse& use, v1::GuestUsage& message);
/// "rank 0 (pid 12) of group 'rollout' has 64 MiB of tag 'heap' open; …": of one group's memory.
std::string describe(const Node& node, const std::vector<GuestUse>& guests);

/// The launcher's number of a rank; -1: not known.
using RankNumber = std::function<int(RankId)>;
void report_phase_times(const std::vector<PhaseTime>& times, const RankNumber& number,
                        google::protobuf::RepeatedPtrField<v1::PhaseTime>& messages);

/// The next of a list of allocations, oldest first. It ends with its last part: what comes and goes
/// between two parts may or may not be in it.
struct AllocationList {
  std::optional<GroupId> only;  // nothing: of all groups
  AllocationId next = 0;
};

/// The answers to the queries of broker.proto that only read the broker's tables, each with what
/// the caller may see. All that it refers to outlives it. An empty name of a group: all groups.
/// Where one is named: kNotFound, kInvalidArgument, as find_group().
struct Reports {
  Node& node;
  const Devices& devices;
  const Workers& workers;  // use of devices is as last seen
  const Accounts& accounts;
  Time began;  // of amemd

  /// Devices and the pool as a whole; of what is in them, the part of the groups that the caller
  /// may see.
  void status(const Caller& caller, v1::NodeStatus& status) const;
  void groups(const Caller& caller, v1::ListGroupsResponse& response) const;
  /// Whether it takes requests: with nothing about the caller's group that the metrics do not have,
  /// so without the note. kInvalidArgument also for a name that no group can have.
  Result<GroupCondition> condition(const Caller& caller, const std::string& group) const;
  Result<std::vector<v1::RankInfo>> ranks(const Caller& caller, const std::string& group) const;
  Result<AllocationList> list_allocations(const Caller& caller, const std::string& group) const;
  /// So many at most, and no more once they have so many bytes. None: there are no more.
  std::vector<v1::AllocationInfo> allocations(const Caller& caller, AllocationList& list,
                                              std::size_t most, std::size_t bytes) const;
  void quotas(const Caller& caller, v1::ListQuotasResponse& response) const;
  /// OK also for a group that has ended, while one of its operations is remembered.
  Status history(const Caller& caller, const v1::ListHistoryRequest& request,
                 v1::ListHistoryResponse& response) const;
};

}  // namespace amem
