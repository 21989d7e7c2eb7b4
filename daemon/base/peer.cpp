#include "daemon/base/peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/process_stat.h"

namespace amem {
namespace {

constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5, younger than some headers

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

/// What /proc/PROCESS/FILE has. Empty: it cannot be read.
std::string read_proc(const std::string& process, const char* name) {
  std::ifstream file("/proc/" + process + "/" + name);
  std::string text;
  std::getline(file, text, '\0');  // an iterator would throw where the process ends meanwhile
  return text;
}

/// How many PID namespaces, from /proc's own inwards, a process has a number in. 0: not known.
std::ptrdiff_t depth(const std::string& process) {
  const std::string status = read_proc(process, "status");
  constexpr char kNumbers[] = "\nNSpid:";
  const std::size_t begin = status.find(kNumbers);
  if (begin == std::string::npos) return status.empty() ? 0 : 1;  // a kernel without namespaces
  const auto from = status.begin() + static_cast<std::ptrdiff_t>(begin + sizeof kNumbers - 1);
  return std::count(from, std::find(from, status.end(), '\n'), '\t');
}

/// Whether the process of that /proc/PID/cgroup is frozen, by its own cgroup or one around it.
bool frozen(const std::string& cgroups) {
  constexpr std::string_view kUnified = "0::/";
  const std::size_t line = cgroups.starts_with(kUnified) ? 0 : cgroups.find("\n0::/");
  if (line == std::string::npos) return false;
  const std::size_t path = cgroups.find('/', line);
  std::ifstream file("/sys/fs/cgroup" + cgroups.substr(path, cgroups.find('\n', path) - path) +
                     "/cgroup.events");
  for (std::string entry; std::getline(file, entry);)
    if (entry == "frozen 1") return true;
  return false;
}

}  // namespace

bool Peer::lives() const {
  if (process == nullptr) return false;
  pollfd ended{process->get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 0;
}

bool Peer::stopped() const {
  const std::optional<ProcessStat> stat = pid > 0 ? process_stat(pid) : std::nullopt;
  if (!stat) return false;
  if (stat->state != 'T' && !frozen(read_proc(std::to_string(pid), "cgroup"))) return false;
  return lives();  // else the number may be another process's
}

Result<Peer> peer_at(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return errno_status(Code::kUnavailable, "SO_PEERCRED", errno);
  return Peer{credentials.pid, credentials.uid, credentials.gid,
              open_process(socket, credentials.pid)};
}

// Not by the links in /proc/PID/ns: a process without capabilities, such as the holder, may not
// read those of one that has some, such as an amemd that looks at user namespaces.
bool shares_namespaces(pid_t pid) {
  const std::string peer = std::to_string(pid);
  const std::ptrdiff_t own = depth("self");
  const std::string map = read_proc("self", "uid_map");
  return own > 0 && depth(peer) == own && !map.empty() && read_proc(peer, "uid_map") == map;
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

}  // namespace amem
