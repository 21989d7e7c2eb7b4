#include "addons/llm_d/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "common/numbers.h"

namespace amem {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr auto kBetweenWarnings = std::chrono::seconds(10);
constexpr int kAcceptsPerTurn = 16;  // so that a signal has its turn, however many come
/// While the process or the system has no descriptor left.
constexpr auto kAcceptAgain = std::chrono::milliseconds(100);

int set(const Fd& socket, int level, int option, int value) {
  return ::setsockopt(socket.get(), level, option, &value, sizeof value);
}

std::string peer_of(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* const peer = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(socket.get(), peer, &size) != 0 || address.ss_family == AF_UNIX ||
      ::getnameinfo(peer, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "a process";
  const std::string name = host.data();
  return (address.ss_family == AF_INET6 ? "[" + name + "]" : name) + ":" + port.data();
}

Status in_use(const std::string& path, const std::string& why) {
  return {Code::kAlreadyExists,
          path + ": " + why + ". Pass --listen with another path, or end that process"};
}

/// OK: nothing is at the path any more.
Status clear_path(const std::string& path, const sockaddr_un& address) {
  struct stat file {};
  if (::lstat(path.c_str(), &file) != 0) return {};  // bind says what else is wrong
  if (!S_ISSOCK(file.st_mode))
    return {Code::kAlreadyExists,
            path + ": is there, and is no socket. Pass --listen with another path"};
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return errno_status(Code::kInternal, "socket for " + path, errno);
  const int connected =
      ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  if (connected == 0 || errno != ECONNREFUSED)
    return in_use(path, "another process listens on this socket");
  if (::unlink(path.c_str()) != 0) return errno_status(Code::kInternal, "unlink " + path, errno);
  return {};
}

}  // namespace

Result<Listener> Listener::open(const std::string& place) {
  return place.starts_with(kUnix) ? open_unix(place.substr(kUnix.size())) : open_tcp(place);
}

Result<Listener> Listener::open_unix(const std::string& path) {
  Listener opened;
  opened.place_ = std::string(kUnix) + path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return Status(Code::kInvalidArgument,
                  "the path of a socket has 1 to " + std::to_string(sizeof address.sun_path - 1) +
                      " characters, and not " + std::to_string(path.size()) + ": " + path);
  path.copy(address.sun_path, path.size());
  // Of two processes that find a socket left behind, one replaces it.
  opened.lock_ = Fd(::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                           S_IRUSR | S_IWUSR));
  if (!opened.lock_)
    return errno_status(Code::kInternal,
                        "open " + path +
                            ".lock (make the directory, or pass --listen unix:PATH in one in "
                            "which this user may write)",
                        errno);
  if (::flock(opened.lock_.get(), LOCK_EX | LOCK_NB) != 0)
    return in_use(path, "another amem-llm-d listens on this socket");
  if (Status status = clear_path(path, address); !status.ok()) return status;
  opened.socket_ = Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!opened.socket_) return errno_status(Code::kInternal, "socket for " + path, errno);
  const mode_t before = ::umask(0177);
  const int bound =
      ::bind(opened.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  ::umask(before);
  if (bound != 0) return errno_status(Code::kInternal, "bind " + path, error);
  opened.path_ = path;
  if (::listen(opened.socket_.get(), SOMAXCONN) != 0)
    return errno_status(Code::kInternal, "listen on " + path, errno);
  return opened;
}

Result<Listener> Listener::open_tcp(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  const bool only_port = colon == std::string::npos;
  std::string host = only_port ? "127.0.0.1" : address.substr(0, colon);
  const std::string port = only_port ? address : address.substr(colon + 1);
  Listener opened;
  opened.place_ = host + ":" + port;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::optional<std::uint16_t> number = number_of_text<std::uint16_t>(port);
  if (host.empty() || number.value_or(0) == 0 ||
      ::getaddrinfo(host.c_str(), port.c_str(), &wanted, &found) != 0)
    return Status(Code::kInvalidArgument,
                  "\"" + address +
                      "\" is no place to listen on. Write unix:PATH, a port such as 9001, "
                      "10.0.0.7:9001 or [::1]:9001");
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> place(found, &::freeaddrinfo);
  opened.socket_ = Fd(::socket(place->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const Fd& socket = opened.socket_;
  if (!socket) return errno_status(Code::kInternal, "socket for " + address, errno);
  if (place->ai_family == AF_INET6) (void)set(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  // Not SO_REUSEPORT: with another program on it, the kernel would give each of the two some of
  // the connections.
  if (set(socket, SOL_SOCKET, SO_REUSEADDR, 1) != 0 ||
      ::bind(socket.get(), place->ai_addr, place->ai_addrlen) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0)
    return errno_status(Code::kInternal,
                        "bind " + opened.place_ +
                            " (check that the port is free and that the address belongs to this "
                            "node)",
                        errno);
  return opened;
}

Listener::~Listener() {
  if (!path_.empty() && socket_) ::unlink(path_.c_str());
}

void Listener::append_to(std::vector<pollfd>& polled) const {
  polled.push_back({socket_.get(), POLLIN, 0});
  for (const Fd& each : connections_) polled.push_back({each.get(), 0, 0});
}

const pollfd* Listener::look(const pollfd* found, const Serve& serve) {
  const bool has_some = found->revents != 0;
  const pollfd* const end = found + 1 + connections_.size();
  std::erase_if(connections_, [&found](const Fd&) { return (++found)->revents != 0; });
  if (has_some) accept_some(serve);
  return end;
}

void Listener::accept_some(const Serve& serve) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection) return cannot_accept(errno);
    take(std::move(connection), serve);
  }
}

void Listener::cannot_accept(int error) {
  if (error == EAGAIN || error == EINTR || error == ECONNABORTED) return;
  const auto now = std::chrono::steady_clock::now();
  if (now >= quiet_until_) {
    spdlog::error("amem-llm-d cannot accept a connection to {}: {}. It tries again", place_,
                  std::strerror(error));
    quiet_until_ = now + kBetweenWarnings;
  }
  std::this_thread::sleep_for(kAcceptAgain);
}

void Listener::take(Fd socket, const Serve& serve) {
  Fd copy = socket.duplicate();
  if (connections_.size() < kMaxConnections && copy) {
    if (is_tcp()) (void)set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    connections_.push_back(std::move(copy));
    return serve(std::move(socket));
  }
  const auto now = std::chrono::steady_clock::now();
  if (now < quiet_until_) return;
  quiet_until_ = now + kBetweenWarnings;
  spdlog::warn(
      "amem-llm-d refuses a connection of {} to {}: {} connections are open, which is the most",
      peer_of(socket), place_, connections_.size());
}

}  // namespace amem
