// Entrance: control.sock. Takes connections, finds out who has connected, and hands the sockets on.
// Callers: who is at the other end of each.
//
// gRPC does not tell a service which process has connected. So amemd takes the connections to
// control.sock, asks the kernel, and hands the sockets to gRPC, which names the peer of each call
// by the number of its socket ("fd:12"). gRPC closes a socket only when its last call has ended, so
// while a call is under way its number cannot be another connection's. Other peers have come by
// TCP; they are not known here.
//
// For the loop's thread, except what Callers says of connections, which is for any.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "common/fd.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/log_limit.h"
#include "daemon/base/unix_listener.h"
#include "daemon/owners/account.h"
#include "daemon/owners/caller.h"

namespace amem {

class Callers {
 public:
  /// The loop outlives this object.
  explicit Callers(EventLoop& loop) : loop_(loop) {}
  /// REQUIRES: the loop has ended, or this is its thread.
  ~Callers();
  Callers(const Callers&) = delete;
  Callers& operator=(const Callers&) = delete;

  /// `socket` will be gRPC's. `charge` is held until the connection ends. False: it cannot be
  /// watched.
  bool connected(int socket, Caller caller, Charge charge);
  /// Who calls, by ServerContext::peer(); nothing: it has hung up, or has come another way.
  std::optional<Caller> of(const std::string& peer) const;
  // Connections of those who do not operate.
  std::size_t count_of(const Account& owner) const;
  std::size_t count() const;
  /// All of them.
  std::size_t connections() const;

 private:
  struct Connection {
    Fd copy;  // hangs up with the connection, whoever ends it
    EventLoop::WatchId watch = 0;
    Caller caller;
    Charge charge;
  };

  EventLoop& loop_;
  mutable std::mutex mutex_;  // guards connections_
  std::map<int, Connection> connections_;
};

class Entrance {
 public:
  /// The most connections that others than operators may have open: each owner, and all together;
  /// of these an owner gets another while more are free than it has.
  static constexpr std::size_t kMaxOfOwner = 320;  // 256 of jobs that wait to start, and some
  static constexpr std::size_t kMaxOfOthers = 1024;

  /// Serves the socket, which it is given, of one who operates or does not.
  using Serve = std::function<void(Fd socket, bool operates)>;

  /// Everything passed in outlives this object.
  Entrance(EventLoop& loop, Accounts& accounts, Callers& callers, Isolation isolation,
           const AccessRules& access, Serve serve)
      : accounts_(accounts),
        callers_(callers),
        isolation_(isolation),
        access_(access),
        serve_(std::move(serve)),
        refusals_(loop, "connections refused"),
        listener_(loop, [this](Fd socket) { take(std::move(socket)); }) {}
  Entrance(const Entrance&) = delete;
  Entrance& operator=(const Entrance&) = delete;

  /// Creates the socket file, replacing one that nobody listens on.
  /// REQUIRES: the caller holds the runtime directory's lock.
  Status open(const SocketFile& file) { return listener_.open(file, SOCK_STREAM); }
  void shut() { listener_.shut(); }

 private:
  void take(Fd socket);

  Accounts& accounts_;
  Callers& callers_;
  const Isolation isolation_;
  const AccessRules access_;
  const Serve serve_;
  LogLimit refusals_;  // of those whose owner is not known
  UnixListener listener_;
};

}  // namespace amem
