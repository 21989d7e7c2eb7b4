// ServiceManager: what amemd tells the service manager that started it, as systemd's sd_notify(3)
// has it: a datagram of lines to the socket that NOTIFY_SOCKET names. Without one, no call has an
// effect.
//
// Any thread. The environment stays as it is: a successor in this process needs it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/clock.h"

namespace amem {

class ServiceManager {
 public:
  /// From NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. Logs why it cannot use them.
  ServiceManager();
  /// `socket`: a path, or the name of an abstract socket after an @. `watchdog`: how long the
  /// manager waits for alive(); nothing: it does not.
  ServiceManager(const std::string& socket, std::optional<Duration> watchdog);

  bool there() const { return static_cast<bool>(socket_); }
  const std::optional<Duration>& watchdog() const { return watchdog_; }

  /// What goes on now, a start, a reload or an end, takes `at_most` from now.
  void takes(Duration at_most) const;
  /// All sockets are there. Ends a reload, too. False: the manager did not get it.
  bool ready() const;
  /// Another program takes this process's place. Until it is ready the watchdog is off.
  void reloading(Duration at_most) const;
  void stopping(Duration at_most) const;
  /// One line, for people.
  void status(std::string_view text) const;
  void alive() const;
  /// On: the manager kills this process if alive() is not called for watchdog().
  void guard(bool on) const;

 private:
  bool send(const std::string& lines) const;

  Fd socket_;
  std::optional<Duration> watchdog_;
};

}  // namespace amem
