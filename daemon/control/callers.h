// Callers: who is at the other end of each connection to the control API.
//
// gRPC does not tell a service which process has connected. So amemd takes the connections to
// control.sock, asks the kernel, and hands the sockets to gRPC, which names the peer of each call
// by the number of its socket ("fd:12"). gRPC closes a socket only when its last call has ended, so
// while a call is under way its number cannot be another connection's. Other peers have come by
// TCP; they are not known here.
//
// connected() and the loop's own calls: the loop's thread. of() and count_of(): any thread.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "common/fd.h"
#include "daemon/base/event_loop.h"
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

}  // namespace amem
