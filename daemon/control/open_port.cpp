#include "daemon/control/open_port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>

namespace amem {
namespace {

// A peer that has vanished is found after two minutes.
constexpr int kAliveIdle = 60;
constexpr int kAliveInterval = 20;
constexpr int kAliveProbes = 3;

int set(const Fd& socket, int level, int option, int value) {
  return ::setsockopt(socket.get(), level, option, &value, sizeof value);
}

std::string peer_of(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* const peer = reinterpret_cast<sockaddr*>(&address);
  if (::getpeername(socket.get(), peer, &size) != 0 ||
      ::getnameinfo(peer, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  const std::string name = host.data();
  return (address.ss_family == AF_INET6 ? "[" + name + "]" : name) + ":" + port.data();
}

}  // namespace

Status OpenPort::open(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return {Code::kInvalidArgument, address + " has no port"};
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error =
          ::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &wanted, &found);
      error != 0)
    return {Code::kInvalidArgument, address + ": " + ::gai_strerror(error)};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> place(found, &::freeaddrinfo);
  Fd socket(::socket(place->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno_status(Code::kInternal, "socket for " + address, errno);
  if (place->ai_family == AF_INET6) (void)set(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (set(socket, SOL_SOCKET, SO_REUSEADDR, 1) != 0)
    return errno_status(Code::kInternal, "setsockopt for " + address, errno);
  if (::bind(socket.get(), place->ai_addr, place->ai_addrlen) != 0)
    return errno_status(Code::kInternal, "bind " + address, errno);
  if (::listen(socket.get(), SOMAXCONN) != 0)
    return errno_status(Code::kInternal, "listen on " + address, errno);
  return listener_.adopt(std::move(socket), address);
}

void OpenPort::take(Fd socket) {
  Caller caller;
  caller.who = whose_ + " " + peer_of(socket);
  if (const std::size_t has = callers_.connections(); has >= kMaxConnections)
    return refusals_.warn(
        "amemd refuses a connection of {} to {}: {} connections are open, which "
        "is the most",
        caller.who, listener_.path(), has);
  (void)set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  (void)set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  (void)set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kAliveIdle);
  (void)set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kAliveInterval);
  (void)set(socket, IPPROTO_TCP, TCP_KEEPCNT, kAliveProbes);
  if (callers_.connected(socket.get(), std::move(caller), {})) serve_(std::move(socket));
}

}  // namespace amem
