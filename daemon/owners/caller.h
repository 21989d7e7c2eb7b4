// Caller: who asks something of the control API, and what it may see and do.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/owners/account.h"
#include "daemon/owners/peer_credentials.h"

namespace amem {

struct Caller {
  std::shared_ptr<Account> account;  // null: of no owner on this node; it operates
  std::string who = "amemd";         // "pid 12 of uid 1000"
  bool operates = true;              // may do everything with everybody's groups
  bool sees_all = true;              // may see them
  SharedFd process = {};             // PeerCredentials'
  pid_t pid = 0;                     // PeerCredentials'
  std::vector<gid_t> groups = {};    // PeerCredentials'

  bool may_steer(const Account& owner) const { return operates || account.get() == &owner; }
  bool may_see(const Account& owner) const { return sees_all || may_steer(owner); }
};

/// What others than owners may do.
struct AccessRules {
  std::optional<gid_t> operators;  // this group operates, besides root and amemd's own user
  bool see_all = false;            // everybody sees everybody's groups
};

/// Where owners are more than uids, whoever is root in a pod must not pass for the node's: only who
/// is in amemd's own user namespace, or for cgroups its pid namespace, can operate.
Caller caller_of(const PeerCredentials& peer, Isolation by, const AccessRules& access);

}  // namespace amem
