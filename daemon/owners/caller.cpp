#include "daemon/owners/caller.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace amem {
namespace {

bool in_own_pid_namespace(pid_t pid) {
  struct stat own {};
  struct stat its {};
  const std::string path = "/proc/" + std::to_string(pid) + "/ns/pid";
  return ::stat("/proc/self/ns/pid", &own) == 0 && ::stat(path.c_str(), &its) == 0 &&
         own.st_ino == its.st_ino && own.st_dev == its.st_dev;
}

/// A uid of this peer is one of the node's.
bool at_home(const PeerCredentials& peer, Isolation by) {
  switch (by) {
    case Isolation::kUserNamespace:
      return peer.account->owner().compartment.empty();
    case Isolation::kCgroup:
      return in_own_pid_namespace(peer.pid) && peer.lives();
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
  caller.who = "pid " + std::to_string(peer.pid) + " of " + to_string(peer.account->owner());
  caller.operates = (peer.uid == 0 || peer.uid == ::geteuid() || in_group) && at_home(peer, by);
  caller.sees_all = caller.operates || access.see_all;
  return caller;
}

}  // namespace amem
