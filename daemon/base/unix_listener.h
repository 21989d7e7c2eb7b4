// UnixListener: a listening AF_UNIX socket that nobody may connect to before its file has its mode
// and group, and the taking of connections from the loop.
//
// For the loop's thread; open() changes the process's umask for a moment.
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <functional>
#include <optional>
#include <string>

#include "common/fd.h"
#include "common/status.h"
#include "daemon/base/event_loop.h"

namespace amem {

struct SocketFile {
  std::string path;
  mode_t mode = 0600;
  std::optional<gid_t> group;  // nothing: the process's
};

/// kInvalidArgument: the path is too long for one.
Result<sockaddr_un> unix_address(const std::string& path);

class UnixListener {
 public:
  /// `take` is given each connection, which is non-blocking. The loop outlives this object.
  UnixListener(EventLoop& loop, std::function<void(Fd)> take)
      : loop_(loop), take_(std::move(take)) {}
  ~UnixListener() { shut(); }
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  /// `type`: SOCK_STREAM or SOCK_SEQPACKET. Replaces a file that nobody listens on.
  /// REQUIRES: the caller holds the runtime directory's lock.
  Status open(const SocketFile& file, int type);
  /// The same on a socket that listens already, of any family. Its file, if it has one, is somebody
  /// else's: a service manager's.
  Status adopt(Fd socket, const std::string& path);
  /// Takes no more, and removes the file if it is ours.
  void shut();
  const std::string& path() const { return path_; }

 private:
  void accept_some();

  EventLoop& loop_;
  const std::function<void(Fd)> take_;
  Status accept_on(Fd socket, const std::string& path);

  std::string path_;
  bool owns_file_ = true;
  Fd socket_;
  EventLoop::WatchId watch_ = 0;
  std::optional<EventLoop::TimerId> again_;  // without space for descriptors: when it goes on
};

/// kNotFound: there is no such group on this system.
Result<gid_t> group_id(const std::string& name);
/// kNotFound: there is no user of that name.
Result<uid_t> user_id(const std::string& name);

}  // namespace amem
