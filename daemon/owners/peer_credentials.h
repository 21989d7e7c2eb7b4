// PeerCredentials: who is at the other end of a socket, by the kernel's word, and whose account
// pays.
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/peer.h"
#include "daemon/owners/account.h"
#include "daemon/owners/owner.h"

namespace amem {

struct PeerCredentials : Peer {
  std::vector<gid_t> groups;  // the first is the process's own
  std::shared_ptr<Account> account;
};

/// Whether it is one process at both ends, which lives or has lived. Processes of pid namespaces
/// that amemd does not see all have number 0: without a kernel that tells them apart (pidfs, Linux
/// 6.9) none of them is another one.
bool same_process(const PeerCredentials& a, const PeerCredentials& b);

/// What has this number now. It may be another process than the one that had it once.
struct Numbered {
  Fd process;          // pidfd; empty: there is none, or it is not known
  bool ended = false;  // there is none
};
Numbered process_with(pid_t pid);

/// Of a connected AF_UNIX socket. kUnavailable: it has gone already. kPermissionDenied: whose it is
/// cannot be told (owner_of).
Result<PeerCredentials> peer_of(int socket, Isolation by, Accounts& accounts);

}  // namespace amem
