#include "daemon/base/unix_listener.h"

#include <grp.h>
#include <pwd.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

namespace amem {
namespace {

constexpr int kAcceptsPerTurn = 16;  // so that others have their turn, however many come
constexpr Duration kAcceptAgain = std::chrono::seconds(1);

Result<Fd> listen_on(const SocketFile& file, int type) {
  const std::string& path = file.path;
  const Result<sockaddr_un> address = unix_address(path);
  if (!address.ok()) return address.status();
  Fd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno_status(Code::kInternal, "socket for " + path, errno);
  ::unlink(path.c_str());
  const mode_t before = ::umask(0777);  // bind creates the file closed to all
  const int bound = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.value()),
                           sizeof address.value());
  const int error = errno;
  ::umask(before);
  if (bound != 0) return errno_status(Code::kInternal, "bind " + path, error);
  if (file.group && ::lchown(path.c_str(), static_cast<uid_t>(-1), *file.group) != 0)
    return errno_status(Code::kInternal, "chown " + path, errno);
  if (::chmod(path.c_str(), file.mode) != 0)
    return errno_status(Code::kInternal, "chmod " + path, errno);
  if (::listen(socket.get(), SOMAXCONN) != 0)
    return errno_status(Code::kInternal, "listen on " + path, errno);
  return socket;
}

}  // namespace

Result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return Status(Code::kInvalidArgument, "the path of a socket may have at most " +
                                              std::to_string(sizeof address.sun_path - 1) +
                                              " characters, but this path has more: " + path);
  path.copy(address.sun_path, path.size());
  return address;
}

Status UnixListener::open(const SocketFile& file, int type) {
  Result<Fd> socket = listen_on(file, type);
  if (!socket.ok()) return socket.status();
  return accept_on(std::move(socket).value(), file.path);
}

Status UnixListener::adopt(Fd socket, const std::string& path) {
  owns_file_ = false;
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0)
    return errno_status(Code::kInternal, "fcntl for " + path, errno);
  return accept_on(std::move(socket), path);
}

Status UnixListener::accept_on(Fd socket, const std::string& path) {
  socket_ = std::move(socket);
  path_ = path;
  watch_ = loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t) { accept_some(); });
  if (watch_ == 0) return errno_status(Code::kInternal, "epoll_ctl for " + path_, errno);
  return {};
}

void UnixListener::shut() {
  if (!socket_) return;
  if (again_) loop_.cancel(*again_);
  loop_.unwatch(watch_);
  socket_.reset();
  if (owns_file_) ::unlink(path_.c_str());
}

void UnixListener::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn && socket_; ++i) {
    Fd connection(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      take_(std::move(connection));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      spdlog::error("amemd cannot accept another connection to {}: {}. It tries again in a second",
                    path_, std::strerror(errno));
      loop_.change(watch_, 0);
      again_ = loop_.at(Clock::now() + kAcceptAgain, [this] {
        again_.reset();
        loop_.change(watch_, EPOLLIN);
      });
    }
    return;
  }
}

Result<gid_t> group_id(const std::string& name) {
  std::vector<char> buffer(1 << 16);
  group entry{};
  group* found = nullptr;
  const int error = ::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (error != 0) return errno_status(Code::kInternal, "looking up the group " + name, error);
  if (found == nullptr) return Status(Code::kNotFound, "there is no group '" + name + "'");
  return entry.gr_gid;
}

Result<uid_t> user_id(const std::string& name) {
  std::vector<char> buffer(1 << 16);
  passwd entry{};
  passwd* found = nullptr;
  const int error = ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (error != 0) return errno_status(Code::kInternal, "looking up the user " + name, error);
  if (found == nullptr) return Status(Code::kNotFound, "there is no user '" + name + "'");
  return entry.pw_uid;
}

}  // namespace amem
