#include "daemon/sessions/session_server.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/base/units.h"

namespace amem {
namespace {

constexpr int kPacketsPerTurn = 64;      // so that one busy rank does not keep the others waiting
constexpr int kAcceptsPerTurn = 16;      // likewise, however many come
constexpr std::size_t kAllocation = 16;  // what malloc adds to each
constexpr int kPeerPidfd = 77;           // SO_PEERPIDFD, Linux 6.5, younger than some headers
constexpr Duration kRetry = std::chrono::milliseconds(5);
constexpr Duration kAcceptAgain = std::chrono::seconds(1);

/// By its number alone another process could be meant: where the kernel cannot say which process it
/// was that connected, the number's owner may have changed since.
SharedFd open_process(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &fd, &size) != 0) {
    if (errno != ENOPROTOOPT || pid <= 0) return nullptr;
    fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  }
  return fd >= 0 ? std::make_shared<const Fd>(fd) : nullptr;
}

}  // namespace

SessionServer::~SessionServer() { shut(); }

std::size_t SessionServer::Outgoing::cost() const {
  return sizeof(Outgoing) + bytes.capacity() + fds.capacity() * sizeof(SharedFd) + 2 * kAllocation;
}

Status SessionServer::listen(const std::string& path, mode_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return {Code::kInvalidArgument, "the path of a socket may have " +
                                        std::to_string(sizeof address.sun_path - 1) +
                                        " characters, this one has more: " + path};
  path.copy(address.sun_path, path.size());
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) return errno_status(Code::kInternal, "socket for " + path, errno);
  ::unlink(path.c_str());
  // Nobody may connect before the mode is right: bind creates the file closed to all.
  const mode_t before = ::umask(0777);
  const int bound = ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  const int error = errno;
  ::umask(before);
  if (bound != 0) return errno_status(Code::kInternal, "bind " + path, error);
  path_ = path;
  if (::chmod(path.c_str(), mode) != 0)
    return errno_status(Code::kInternal, "chmod " + path, errno);
  if (::listen(listener_.get(), SOMAXCONN) != 0)
    return errno_status(Code::kInternal, "listen on " + path, errno);
  listener_watch_ = loop_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept_some(); });
  if (listener_watch_ == 0) return errno_status(Code::kInternal, "epoll_ctl for " + path, errno);
  return {};
}

void SessionServer::shut() {
  if (listener_) {
    loop_.unwatch(listener_watch_);
    listener_.reset();
    ::unlink(path_.c_str());
  }
  for (auto& [id, session] : sessions_) loop_.unwatch(session.watch);
  sessions_.clear();
}

void SessionServer::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        spdlog::error("cannot take another session: {}; trying again in a second",
                      std::strerror(errno));
        pause_accepting();
      }
      return;
    }
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) continue;
    if (sessions_.size() >= kMaxSessions) {
      refusals_.warn("session of pid {} (uid {}) refused: there are {} already", credentials.pid,
                     credentials.uid, sessions_.size());
      continue;
    }
    const SessionId id = next_id_++;
    const EventLoop::WatchId watch = loop_.watch(
        socket.get(), EPOLLIN, [this, id](std::uint32_t events) { on_events(id, events); });
    if (watch == 0) continue;
    Session& session = sessions_[id];
    session.socket = std::move(socket);
    session.watch = watch;
    handler_.session_opened(id, {credentials.pid, credentials.uid,
                                 open_process(session.socket.get(), credentials.pid)});
  }
}

void SessionServer::pause_accepting() {
  loop_.change(listener_watch_, 0);
  loop_.at(Clock::now() + kAcceptAgain, [this] {
    if (listener_) loop_.change(listener_watch_, EPOLLIN);
  });
}

void SessionServer::on_events(SessionId id, std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush(id);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_some(id);
}

void SessionServer::read_some(SessionId id) {
  Packet packet;
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    const auto it = sessions_.find(id);
    if (it == sessions_.end() || it->second.closing) return;
    const Status status = receive(it->second.socket.get(), MSG_DONTWAIT, packet);
    switch (status.code()) {
      case Code::kOk:
        handler_.session_packet(id, packet);
        break;
      case Code::kResourceExhausted:
        return;
      case Code::kUnavailable:
        return close(id, "");
      default:
        return close(id, status.text());
    }
  }
}

Status SessionServer::send_now(const Session& session, const Outgoing& out) {
  std::vector<int> fds;
  fds.reserve(out.fds.size());
  for (const SharedFd& fd : out.fds) fds.push_back(fd->get());
  return send_encoded(session.socket.get(), out.bytes, fds);
}

void SessionServer::send(SessionId id, const Message& message, std::vector<SharedFd> fds) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second.closing) return;
  Session& session = it->second;
  Result<std::string> bytes = encode(message);
  if (!bytes.ok()) return close(id, bytes.status().text());
  const bool answer = message.which_body == amem_v1_SessionMessage_reply_tag;
  Outgoing out{std::move(bytes).value(), std::move(fds), answer};
  if (session.queue.empty()) {
    const Status status = send_now(session, out);
    if (status.ok()) return;
    // A peer that has gone is found by reading: what it sent before comes first.
    if (status.code() == Code::kUnavailable) return;
    if (status.code() != Code::kResourceExhausted) return close(id, status.text());
    loop_.change(session.watch, EPOLLIN | EPOLLOUT);
  }
  session.queued += out.cost();
  session.answers += out.answer ? 1U : 0U;
  session.queue.push_back(std::move(out));
  if (session.queued > kMaxQueue)
    close(id, "it does not read: more than " + format_size(kMaxQueue) + " are waiting for it");
  else if (session.answers > kMaxAnswers)
    close(id, "it does not read: more than " + std::to_string(kMaxAnswers) +
                  " answers to its requests are waiting for it");
}

void SessionServer::flush(SessionId id) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second.closing) return;
  Session& session = it->second;
  bool progress = false;
  while (!session.queue.empty()) {
    const Status status = send_now(session, session.queue.front());
    if (status.code() == Code::kResourceExhausted) {
      // Writable, yet it takes nothing: too many descriptors are in flight. Polling would spin.
      if (!progress) {
        loop_.change(session.watch, EPOLLIN);
        loop_.at(Clock::now() + kRetry, [this, id] { flush(id); });
      } else {
        loop_.change(session.watch, EPOLLIN | EPOLLOUT);
      }
      return;
    }
    if (status.code() == Code::kUnavailable) break;  // reading finds it
    if (!status.ok()) return close(id, status.text());
    progress = true;
    session.queued -= session.queue.front().cost();
    session.answers -= session.queue.front().answer ? 1U : 0U;
    session.queue.pop_front();
  }
  session.queue.clear();
  session.queued = 0;
  session.answers = 0;
  loop_.change(session.watch, EPOLLIN);
}

void SessionServer::close(SessionId id, const std::string& why) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second.closing) return;
  it->second.closing = true;
  it->second.queue.clear();
  loop_.unwatch(it->second.watch);
  loop_.post([this, id, why] {
    if (sessions_.erase(id) > 0) handler_.session_closed(id, why);
  });
}

}  // namespace amem
