// Peer: the process at the other end of a Unix socket, by the kernel's word.
//
// Plain functions over the socket and /proc; any thread.
#pragma once

#include <sys/types.h>

#include "common/fd.h"
#include "common/status.h"

namespace amem {

struct Peer {
  pid_t pid = 0;  // 0: in a PID namespace whose processes this one does not see
  uid_t uid = 0;
  gid_t gid = 0;
  SharedFd process;  // pidfd: readable once the process has ended; null where the kernel has none

  /// The process has not ended. Where the kernel cannot tell, it counts as ended.
  bool lives() const;
  /// It does not run until somebody continues it: it has SIGSTOP or a terminal's signal, as by
  /// Ctrl-Z, or its cgroup is frozen. False: also where /proc does not show it.
  bool stopped() const;
};

/// Of a connected AF_UNIX socket. kUnavailable: it has gone already.
Result<Peer> peer_at(int socket);

/// Whether a process that this one sees is in its PID namespace and has its map of uids, which a
/// process in a container does not. The caller looks at the process's pidfd afterwards: only of a
/// process that still lives is this the answer. False: also where /proc does not show it.
bool shares_namespaces(pid_t pid);

/// In which processes have the numbers that this one sees. 0: it is not known.
std::uint64_t pid_namespace();

/// Whether this kernel can tell when a process has ended (pidfd, Linux 5.3).
bool kernel_tells_ends();

}  // namespace amem
