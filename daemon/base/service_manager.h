// ServiceManager: what amemd tells the service manager that started it, as systemd's sd_notify(3)
// has it: a datagram of lines to the socket that NOTIFY_SOCKET names. Without one, only the
// watchdog has an effect: where WATCHDOG_USEC is set, as in a container, a timer of the kernel
// kills this process in the manager's place.
//
// Any thread. The environment stays as it is: a successor in this process needs it.
#pragma once

#include <time.h>

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
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  /// Somebody listens, or watches.
  bool there() const { return socket_ || timer_; }
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
  /// On: this process is killed if alive() is not called for watchdog().
  void guard(bool on) const;

 private:
  bool send(const std::string& lines) const;
  /// Zero: never.
  void kill_after(Duration time) const;

  Fd socket_;
  std::optional<Duration> watchdog_;
  std::optional<timer_t> timer_;  // SIGKILL; an exec deletes it
};

}  // namespace amem
