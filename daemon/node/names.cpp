#include "daemon/node/names.h"

#include <algorithm>

#include "common/job.h"
#include "common/utf8.h"

namespace amem {
namespace {

std::string no_such_group(const Node& node, const Caller& caller, const std::string& name) {
  std::string text = "there is no group '" + printable(name.c_str()) + "'. ";
  std::string seen;
  for (const auto& [id, group] : node.groups)
    if (caller.may_see(*group.account)) seen += " '" + name_for(node, caller, group) + "'";
  if (seen.empty())
    return text + "No group exists: a group begins with its first rank" +
           (caller.sees_all ? "" : ". Groups of other users are not shown");
  return text + "The groups are" + seen;
}

/// What the caller can mean by this name: its own groups go first, and an address is one group's.
std::vector<GroupId> called(const Node& node, const Caller& caller, const std::string& name) {
  const bool has_owner = name.find('@') != std::string::npos;
  std::vector<GroupId> own;
  std::vector<GroupId> all;
  for (const auto& [id, group] : node.groups) {
    if (!caller.may_see(*group.account) || !may_be_called(name, group)) continue;
    if (has_owner && name == address_of(group)) return {id};
    all.push_back(id);
    if (caller.account == group.account) own.push_back(id);
  }
  return own.empty() ? all : own;
}

}  // namespace

std::string address_of(const GroupEntry& group) {
  return group.machine.name() + "@" + key_of(group.account->owner());
}

bool may_be_called(const std::string& name, std::string_view whole, const Owner& owner) {
  const std::size_t at = name.find('@');
  const std::string_view group = std::string_view(name).substr(0, at);
  return (group == whole || group == name_of_group(whole)) &&
         (at == std::string::npos || name.substr(at + 1) == key_of(owner));
}

bool may_be_called(const std::string& name, const GroupEntry& group) {
  return may_be_called(name, group.machine.name(), group.account->owner());
}

GroupEntry* own_group(Node& node, const Account& owner, const std::string& whole) {
  for (auto& [id, group] : node.groups)
    if (group.account.get() == &owner && group.machine.name() == whole) return &group;
  return nullptr;
}

Result<GroupEntry*> find_group(Node& node, const Caller& caller, const std::string& name) {
  std::vector<GroupId> found = called(node, caller, name);
  const auto of_caller = [&](GroupId id) {
    return caller.pid > 0 && std::any_of(node.ranks.begin(), node.ranks.end(), [&](const auto& it) {
             return it.second.group == id && it.second.peer.pid == caller.pid;
           });
  };
  if (found.size() > 1)
    if (const auto own = std::find_if(found.begin(), found.end(), of_caller); own != found.end())
      found = {*own};
  if (found.empty()) return Status(Code::kNotFound, no_such_group(node, caller, name));
  if (found.size() == 1) return &node.groups.at(found.front());
  std::string all;
  for (const GroupId id : found) all += " '" + name_for(node, caller, node.groups.at(id)) + "'";
  return Status(Code::kInvalidArgument,
                "several groups have the name '" + name + "':" + all + ". Use one of these names");
}

Result<GroupEntry*> find_to_steer(Node& node, const Caller& caller, const std::string& name) {
  Result<GroupEntry*> found = find_group(node, caller, name);
  if (found.ok() && !caller.may_steer(*found.value()->account))
    return Status(
        Code::kPermissionDenied,
        "group '" + name + "' belongs to " + to_string(found.value()->account->owner()) +
            ". Only its owner and the node's operators may control it (access.operators)");
  return found;
}

Result<std::vector<GroupEntry*>> find_all_to_steer(Node& node, const Caller& caller,
                                                   const std::string& name) {
  std::vector<GroupEntry*> all;
  for (const GroupId id : called(node, caller, name)) all.push_back(&node.groups.at(id));
  const bool may_set = std::all_of(all.begin(), all.end(), [&](const GroupEntry* group) {
    return group->account == all.front()->account && caller.may_steer(*group->account);
  });
  if (may_set && !all.empty()) return all;
  const Result<GroupEntry*> one = find_to_steer(node, caller, name);
  if (!one.ok()) return one.status();
  return std::vector<GroupEntry*>{one.value()};
}

Result<std::vector<NamedGroup>> find_to_steer(Node& node, const Caller& caller,
                                              const std::vector<std::string>& names) {
  std::vector<NamedGroup> groups;
  for (const std::string& name : names) {
    const Result<GroupEntry*> group = find_to_steer(node, caller, name);
    if (!group.ok()) return group.status();
    groups.push_back({group.value()->id, name});
  }
  return groups;
}

std::vector<const Rank*> stopped_ranks(const Node& node, const GroupEntry& group) {
  std::vector<const Rank*> stopped;
  for (const RankId id : group.machine.members().ids())
    if (const Rank* const rank = node.find_rank(id); rank != nullptr && rank->peer.stopped())
      stopped.push_back(rank);
  return stopped;
}

std::string describe_stopped(const Node& node, const GroupEntry& group) {
  std::vector<RankId> ids;
  std::string pids;
  for (const Rank* const rank : stopped_ranks(node, group)) {
    ids.push_back(rank->id);
    pids += " " + std::to_string(rank->peer.pid);
  }
  if (ids.empty()) return {};
  return "stopped, as by Ctrl-Z, SIGSTOP or a frozen cgroup: " +
         group.machine.members().names(ids) + ". Continue with `fg` or `kill -CONT" + pids +
         "`, then try again";
}

std::string name_for(const Node& node, const Caller& caller, const GroupEntry& group) {
  const std::string& whole = group.machine.name();
  for (std::string name : {std::string(name_of_group(whole)), whole})
    if (called(node, caller, name) == std::vector<GroupId>{group.id}) return name;
  return address_of(group);
}

namespace {

void replace(std::string& text, const std::string& what, std::string_view by) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
}

void forget_name(std::string& text, const std::string& name) {
  replace(text, "group '" + name + "'", "another owner's group");
  replace(text, "'" + name + "'", "another owner's");
}

}  // namespace

std::string without_unseen_names(const Node& node, const Caller& caller, std::string text) {
  for (const auto& [id, group] : node.groups)
    if (!caller.may_see(*group.account)) forget_name(text, group.machine.name());
  return text;
}

std::string without_names_of_others(const Node& node, const Account& owner, std::string text) {
  for (const auto& [id, group] : node.groups)
    if (group.account.get() != &owner) forget_name(text, group.machine.name());
  return text;
}

Status check_whole_name(const std::string& name) {
  if (valid_whole_name(name)) return {};
  return {Code::kInvalidArgument,
          "\"" + printable(name.c_str()) +
              "\" is not a valid group name. Use 1 to 63 of the characters A-Z a-z 0-9 . _ -, and "
              "do not begin with . or -"};
}

}  // namespace amem
