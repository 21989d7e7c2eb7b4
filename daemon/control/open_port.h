// OpenPort: a TCP port for whoever reaches it, without TLS. Takes connections and hands the sockets
// on, up to a bound: otherwise whoever reaches the port could use up amemd's descriptors.
//
// For the loop's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "daemon/base/log_limit.h"
#include "daemon/base/unix_listener.h"
#include "daemon/control/entrance.h"

namespace amem {

class OpenPort {
 public:
  static constexpr std::size_t kMaxConnections = 64;

  /// `whose`: names a caller before its address, "llm-d at". `serve` is given each socket, and the
  /// callers are known before. All outlive this object.
  OpenPort(EventLoop& loop, Callers& callers, std::string whose, std::function<void(Fd)> serve)
      : callers_(callers),
        whose_(std::move(whose)),
        serve_(std::move(serve)),
        refusals_(loop, "connections refused"),
        listener_(loop, [this](Fd socket) { take(std::move(socket)); }) {}
  OpenPort(const OpenPort&) = delete;
  OpenPort& operator=(const OpenPort&) = delete;

  /// `address`: numeric, "10.0.0.7:9001" or "[::1]:9001". The port is nobody else's too.
  Status open(const std::string& address);
  void shut() { listener_.shut(); }

 private:
  void take(Fd socket);

  Callers& callers_;
  const std::string whose_;
  const std::function<void(Fd)> serve_;
  LogLimit refusals_;
  UnixListener listener_;
};

}  // namespace amem
