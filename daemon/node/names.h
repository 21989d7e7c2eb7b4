// Names: groups by what callers call them.
//
// A name belongs to an owner, and two jobs of an owner may have a group of one name. "train" is the
// group of the rank that calls, or else the caller's own group, or else the only one of that name
// among those that it may see. "train:slurm-12" is that job's (common/job.h), "train@1000" that
// uid's, "train@/kubepods/pod12ab" a compartment's. Groups that the caller may not see are to it as
// if they were not there.
//
// For the loop's thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "daemon/base/ids.h"
#include "daemon/node/node.h"
#include "daemon/owners/caller.h"

namespace amem {

/// The owner's own of this whole name; null: it has none.
GroupEntry* own_group(Node& node, const Account& owner, const std::string& whole);

/// kNotFound: the caller sees no such group; the text names those that it sees. kInvalidArgument:
/// several owners or jobs have one; the text names them.
Result<GroupEntry*> find_group(Node& node, const Caller& caller, const std::string& name);
/// The same for groups that the caller may control. kPermissionDenied: it only sees it.
Result<GroupEntry*> find_to_steer(Node& node, const Caller& caller, const std::string& name);
/// Returns the groups that a setting by this name concerns: those of all jobs of one owner that
/// have it. Errors as above; the list is not empty.
Result<std::vector<GroupEntry*>> find_all_to_steer(Node& node, const Caller& caller,
                                                   const std::string& name);
/// A group, and what the caller has called it.
struct NamedGroup {
  GroupId id;
  std::string name;
};
Result<std::vector<NamedGroup>> find_to_steer(Node& node, const Caller& caller,
                                              const std::vector<std::string>& names);

/// "train:slurm-12@1000", by whatever names others have groups.
std::string address_of(const GroupEntry& group);
/// The shortest name by which the caller can call a group that it sees.
std::string name_for(const Node& node, const Caller& caller, const GroupEntry& group);

/// The group's ranks whose processes are stopped now.
std::vector<const Rank*> stopped_ranks(const Node& node, const GroupEntry& group);
/// What an operation that needs them says; empty: there are none.
std::string describe_stopped(const Node& node, const GroupEntry& group);

/// A text for somebody, without the names of groups that they may not see.
std::string without_unseen_names(const Node& node, const Caller& caller, std::string text);
std::string without_names_of_others(const Node& node, const Account& owner, std::string text);

/// Whether a group that is called so by somebody who sees all could be this one.
bool may_be_called(const std::string& name, const GroupEntry& group);
bool may_be_called(const std::string& name, std::string_view whole, const Owner& owner);

/// kInvalidArgument: no group can have this whole name.
Status check_whole_name(const std::string& name);

}  // namespace amem
