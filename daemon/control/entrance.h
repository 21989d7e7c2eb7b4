// Entrance: control.sock. Takes connections, finds out who has connected, and hands the sockets on.
//
// For the loop's thread.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <utility>

#include "daemon/base/event_loop.h"
#include "daemon/base/log_limit.h"
#include "daemon/base/unix_listener.h"
#include "daemon/control/callers.h"
#include "daemon/owners/accounts.h"
#include "daemon/owners/caller.h"

namespace amem {

class Entrance {
 public:
  /// What others than operators may have open: each owner, and all together; of these an owner gets
  /// another while more are free than it has.
  static constexpr std::size_t kMaxOfOwner = 64;
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
