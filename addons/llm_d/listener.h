// Listener: a socket on which llm-d's clients connect: a Unix socket that only this process's user
// may open, or a TCP port for whoever reaches it, without TLS.
//
// It accepts connections instead of gRPC. gRPC's listeners take connections without a bound, and
// never again once the process has had no descriptor left for one.
//
// For one thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace amem {

class Listener {
 public:
  static constexpr std::size_t kMaxConnections = 64;
  using Serve = std::function<void(Fd)>;

  /// `place`: "unix:PATH", "PORT" of 127.0.0.1, "ADDRESS:PORT" with a numeric address,
  /// "[::1]:9001". Replaces a socket that a process has left behind when it ended. The port is
  /// nobody else's too. kInvalidArgument: it is none of these. kAlreadyExists: another process
  /// listens on the path, or what is there is no socket. kInternal: the system refuses it.
  static Result<Listener> open(const std::string& place);

  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = default;
  /// Removes the file of a Unix socket.
  ~Listener();

  /// "unix:PATH" or "ADDRESS:PORT".
  const std::string& place() const { return place_; }
  bool is_tcp() const { return path_.empty(); }

  /// Appends what to poll for: the socket, and the connections that are open.
  void append_to(std::vector<pollfd>& polled) const;
  /// Accepts who has connected, and gives each to `serve`. Forgets connections that have ended.
  /// `found`: what poll() has found of what append_to() has appended. Returns its end.
  const pollfd* look(const pollfd* found, const Serve& serve);

 private:
  Listener() = default;

  static Result<Listener> open_unix(const std::string& path);
  static Result<Listener> open_tcp(const std::string& address);
  void accept_some(const Serve& serve);
  void cannot_accept(int error);
  void take(Fd socket, const Serve& serve);

  std::string place_;
  std::string path_;  // of a Unix socket
  Fd lock_;           // of PATH.lock, for a Unix socket
  Fd socket_;
  std::vector<Fd> connections_;  // copies: gRPC has the sockets
  std::chrono::steady_clock::time_point quiet_until_;
};

}  // namespace amem
