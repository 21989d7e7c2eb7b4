#include "daemon/owners/peer_credentials.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace amem {
namespace {

constexpr int kPeerPidfd = 77;       // SO_PEERPIDFD, Linux 6.5, younger than some headers
constexpr long kPidfs = 0x50494446;  // statfs's f_type, younger than some headers
constexpr std::size_t kManyGroups = 32;

/// By its number alone another process could be meant: where the kernel cannot say which process it
/// was that connected, the number's owner may have changed since.
SharedFd open_process(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &fd, &size) != 0) {
    if (errno != ENOPROTOOPT || pid <= 0) return nullptr;
    fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  }
  return fd >= 0 ? std::make_shared<const Fd>(fd) : nullptr;
}

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

std::uint64_t pid_namespace() {
  static const std::uint64_t own = [] {
    struct stat found {};
    return ::stat("/proc/self/ns/pid", &found) == 0 ? std::uint64_t{found.st_ino} : 0;
  }();
  return own;
}

bool kernel_tells_ends() {
  const Fd own(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  return own || errno != ENOSYS;
}

bool PeerCredentials::lives() const {
  if (process == nullptr) return false;
  pollfd ended{process->get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 0;
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
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return errno_status(Code::kUnavailable, "SO_PEERCRED", errno);
  PeerCredentials peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.groups = groups_of(socket, credentials.gid);
  peer.process = open_process(socket, peer.pid);
  Result<Owner> owner = owner_of(peer.pid, peer.uid, by);
  if (!owner.ok()) return owner.status();
  // Only of a process that still lives was it that process which /proc told of.
  if (by != Isolation::kUid && !peer.lives())
    return Status(Code::kPermissionDenied,
                  "pid " + std::to_string(peer.pid) + " ended while it connected");
  peer.account = accounts.of(owner.value());
  return peer;
}

}  // namespace amem
