// Owner: the one on whose behalf a process acts. Owners share nothing but the node.
//
// An owner is a uid. Where uids say nothing, because all pods run as the same one, it is a
// compartment, with all its uids: a user namespace or a cgroup, which the kernel knows of the
// process and the process cannot choose. Plain functions over /proc; any thread.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <istream>
#include <string>
#include <string_view>

#include "common/status.h"

namespace amem {

/// By what owners are told apart.
enum class Isolation : std::uint8_t { kUid, kUserNamespace, kCgroup };

struct Owner {
  uid_t uid = 0;            // 0 in a compartment, whose processes choose their uids
  std::string compartment;  // empty: by uid

  friend auto operator<=>(const Owner&, const Owner&) = default;
};

/// "uid 1000", "/kubepods/pod12ab".
std::string to_string(const Owner& owner);
/// "1000", "/kubepods/pod12ab": what follows the @ in the name of a group.
std::string key_of(const Owner& owner);

/// Returns the owner of a process. REQUIRES: the process lives meanwhile; the caller looks at its
/// pidfd afterwards. kPermissionDenied: its compartment cannot be told, and it must not pass for
/// somebody else.
Result<Owner> owner_of(pid_t pid, uid_t uid, Isolation by);

/// Whether this host tells processes apart in this way. kFailedPrecondition: why not, and what to
/// do.
Status can_isolate(Isolation by);

/// The path of a process in cgroup v2, of its /proc/PID/cgroup. kFailedPrecondition: it has none
/// that tells containers apart; the text goes on from the file's name.
Result<std::string> unified_cgroup(std::istream& file);

/// Returns the part of a cgroup's path in /proc/PID/cgroup that the process itself cannot change:
/// down to a pod of Kubernetes, else the first two names ("/user.slice/user-1000.slice",
/// "/system.slice/docker-12ab.scope").
std::string compartment_of_cgroup(std::string_view path);

}  // namespace amem
