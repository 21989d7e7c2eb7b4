#include "daemon/owners/caller.h"

#include <unistd.h>

#include <algorithm>

namespace amem {
namespace {

/// A uid of this peer is one of the node's.
bool at_home(const PeerCredentials& peer, Isolation by) {
  switch (by) {
    case Isolation::kUserNamespace:
      return peer.account->owner().compartment.empty();
    case Isolation::kCgroup:
      return shares_namespaces(peer.pid) && peer.lives();
    case Isolation::kUid:
      break;
  }
  return true;
}

}  // namespace

Caller caller_of(const PeerCredentials& peer, Isolation by, const AccessRules& access) {
  const bool in_group = access.operators && std::find(peer.groups.begin(), peer.groups.end(),
                                                      *access.operators) != peer.groups.end();
  Caller caller;
  caller.account = peer.account;
  caller.process = peer.process;
  caller.pid = peer.pid;
  caller.groups = peer.groups;
  caller.who = "pid " + std::to_string(peer.pid) + " of " + to_string(peer.account->owner());
  caller.operates = (peer.uid == 0 || peer.uid == ::geteuid() || in_group) && at_home(peer, by);
  caller.sees_all = caller.operates || access.see_all;
  return caller;
}

}  // namespace amem
