#include "tests/world/outside.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>

#include "common/fd.h"
#include "common/protocol.h"

namespace amem::world::outside {
namespace {

constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, younger than some headers

struct Peer {
  pid_t pid = 0;
  uid_t uid = 0;
  int process = -1;
};

std::atomic<std::int64_t> now_ns;  // the pool's thread asks, too
std::uint64_t last_token = 0;
std::deque<Peer> peers;
std::map<pid_t, int> processes;  // of all that have connected; -1: it has ended

}  // namespace

void begin() {
  now_ns = std::chrono::nanoseconds(std::chrono::hours(1)).count();
  last_token = 0;
  peers.clear();
  processes.clear();
}

void pass(std::chrono::nanoseconds time) { now_ns += time.count(); }

void connects(pid_t pid, uid_t uid, int process) {
  peers.push_back({pid, uid, process});
  processes[pid] = process;
}

void ends(pid_t pid) { processes[pid] = -1; }

void nobody_connects() { peers.clear(); }

namespace {

/// Where the broker is the one that connects, the other end listens, and so has a name.
bool is_taken(int socket) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  return ::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
         size <= sizeof address.sun_family;
}

}  // namespace

}  // namespace amem::world::outside

using amem::world::outside::is_taken;
using amem::world::outside::kPeerPidfd;
using amem::world::outside::last_token;
using amem::world::outside::now_ns;
using amem::world::outside::peers;
using amem::world::outside::processes;

extern "C" {
int __real_getsockopt(int socket, int level, int option, void* value, socklen_t* size);
long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
ssize_t __real_getrandom(void* buffer, std::size_t size, unsigned flags);

/// std::chrono::steady_clock::now(), whose time_point is returned as what it consists of.
std::int64_t __wrap__ZNSt6chrono3_V212steady_clock3nowEv() { return now_ns; }

int __wrap_getsockopt(int socket, int level, int option, void* value, socklen_t* size) {
  if (level != SOL_SOCKET || peers.empty() || (option != SO_PEERCRED && option != kPeerPidfd) ||
      !is_taken(socket))
    return __real_getsockopt(socket, level, option, value, size);
  const amem::world::outside::Peer peer = peers.front();
  if (option == SO_PEERCRED) {
    const ucred credentials{peer.pid, peer.uid, 0};
    std::memcpy(value, &credentials, sizeof credentials);
    return 0;
  }
  peers.pop_front();  // the broker asks for this last
  const int process = ::fcntl(peer.process, F_DUPFD_CLOEXEC, 0);
  if (process < 0) return -1;
  std::memcpy(value, &process, sizeof process);
  return 0;
}

/// A process that has connected is found by its number, also when it has ended. Other calls do not
/// look at the table: other threads make them, too.
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
  if (number != SYS_pidfd_open) return __real_syscall(number, a, b, c, d, e, f);
  const auto found = processes.find(static_cast<pid_t>(a));
  if (found == processes.end()) return __real_syscall(number, a, b, c, d, e, f);
  if (found->second >= 0) return ::fcntl(found->second, F_DUPFD_CLOEXEC, 0);
  errno = ESRCH;
  return -1;
}

/// Tokens that an input can foresee: the n-th is n, sixteen times. Later ones differ in more bytes.
ssize_t __wrap_getrandom(void* buffer, std::size_t size, unsigned flags) {
  if (size != sizeof(amem::Token)) return __real_getrandom(buffer, size, flags);
  std::memset(buffer, static_cast<std::uint8_t>(++last_token), size);
  const std::uint64_t more = last_token >> 8;
  if (more != 0) std::memcpy(buffer, &more, sizeof more);
  return static_cast<ssize_t>(size);
}
}
