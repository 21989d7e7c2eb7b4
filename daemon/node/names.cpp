#include "daemon/node/names.h"

#include "daemon/sessions/messages.h"

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

}  // namespace

std::string address_of(const GroupEntry& group) {
  return group.machine.name() + "@" + key_of(group.account->owner());
}

bool may_be_called(const std::string& name, const GroupEntry& group) {
  return name.find('@') == std::string::npos ? name == group.machine.name()
                                             : name == address_of(group);
}

GroupEntry* own_group(Node& node, const Account& owner, const std::string& name) {
  for (auto& [id, group] : node.groups)
    if (group.account.get() == &owner && group.machine.name() == name) return &group;
  return nullptr;
}

Result<GroupEntry*> find_group(Node& node, const Caller& caller, const std::string& name) {
  if (caller.account != nullptr)
    if (GroupEntry* own = own_group(node, *caller.account, name)) return own;
  GroupEntry* found = nullptr;
  for (auto& [id, group] : node.groups) {
    if (!caller.may_see(*group.account) || !may_be_called(name, group)) continue;
    if (found != nullptr)
      return Status(Code::kInvalidArgument,
                    "several groups have the name '" + name + "', such as '" + address_of(*found) +
                        "' and '" + address_of(group) + "'. Use the name with its owner");
    found = &group;
  }
  if (found == nullptr) return Status(Code::kNotFound, no_such_group(node, caller, name));
  return found;
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

std::string name_for(const Node& node, const Caller& caller, const GroupEntry& group) {
  const std::string& name = group.machine.name();
  if (caller.account == group.account) return name;
  for (const auto& [id, other] : node.groups)
    if (id != group.id && other.machine.name() == name && caller.may_see(*other.account))
      return address_of(group);
  return name;
}

}  // namespace amem
