// How a name that a caller gives finds its group. Pure; any thread.
#pragma once

#include <string>

#include "amem/v1/broker.pb.h"
#include "common/status.h"

namespace amem::ctl {

/// A name may call groups of several owners, an address only one.
inline bool is_called(const v1::GroupInfo& group, const std::string& name) {
  return group.name() == name || group.address() == name;
}

/// `groups`: of any answer that has some. The first that is called so; nullptr: there is none.
template <class Groups>
const v1::GroupInfo* group_called(const Groups& groups, const std::string& name) {
  for (const v1::GroupInfo& group : groups)
    if (is_called(group, name)) return &group;
  return nullptr;
}

inline Status no_such_group(const std::string& name) {
  return {Code::kNotFound, "there is no group " + name + "; `amemctl groups` lists the groups"};
}

}  // namespace amem::ctl
