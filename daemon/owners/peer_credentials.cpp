#include "daemon/owners/peer_credentials.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace amem {
namespace {

constexpr long kPidfs = 0x50494446;  // statfs's f_type, younger than some headers
constexpr std::size_t kManyGroups = 32;

std::vector<gid_t> groups_of(int socket, gid_t first) {
  std::vector<gid_t> groups(kManyGroups);
  auto size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) != 0) {
    if (errno != ERANGE) size = 0;  // else `size` says how much there is
    groups.resize(size / sizeof(gid_t));
    if (size > 0 && ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) != 0)
      size = 0;
  }
  groups.resize(size / sizeof(gid_t));
  groups.insert(groups.begin(), first);
  return groups;
}

}  // namespace

Numbered process_with(pid_t pid) {
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const bool ended = !process && errno == ESRCH;
  return {std::move(process), ended};
}

bool same_process(const PeerCredentials& a, const PeerCredentials& b) {
  if (a.pid != b.pid || a.uid != b.uid) return false;
  if (a.pid > 0) return true;
  if (a.process == nullptr || b.process == nullptr) return false;
  struct statfs system {};
  struct stat one {};
  struct stat other {};
  // Elsewhere all pidfds have one inode.
  return ::fstatfs(a.process->get(), &system) == 0 && system.f_type == kPidfs &&
         ::fstat(a.process->get(), &one) == 0 && ::fstat(b.process->get(), &other) == 0 &&
         one.st_ino == other.st_ino;
}

Result<PeerCredentials> peer_of(int socket, Isolation by, Accounts& accounts) {
  Result<Peer> found = peer_at(socket);
  if (!found.ok()) return found.status();
  PeerCredentials peer{std::move(found).value(), {}, nullptr};
  peer.groups = groups_of(socket, peer.gid);
  Result<Owner> owner = owner_of(peer.pid, peer.uid, by);
  if (!owner.ok()) return owner.status();
  // If the process still lives, /proc has shown this process and no other.
  if (by != Isolation::kUid && !peer.lives())
    return Status(Code::kPermissionDenied,
                  "pid " + std::to_string(peer.pid) + " ended while it connected");
  peer.account = accounts.of(owner.value());
  return peer;
}

}  // namespace amem
