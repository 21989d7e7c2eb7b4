#include "daemon/holder/client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "common/descriptors.h"
#include "daemon/base/peer.h"
#include "daemon/base/units.h"
#include "daemon/base/unix_listener.h"

namespace amem {
namespace {

constexpr Duration kTryAgain = std::chrono::milliseconds(1);

/// For poll(): at least a millisecond, so that what is left of one does not spin.
int ms_until(Time until) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 1, 60'000));
}

/// Only a process of this user may have the descriptors of its memory.
Status check_server(int socket, const std::string& path) {
  const Result<Peer> found = peer_at(socket);
  if (!found.ok()) return {found.status().code(), path + ": " + found.status().text()};
  const Peer& peer = found.value();
  if (peer.uid == ::geteuid()) return {};
  return {Code::kPermissionDenied, "uid " + std::to_string(peer.uid) + " serves " + path +
                                       ", but amemd is uid " + std::to_string(::geteuid()) +
                                       ", so this is not its holder. Stop that process (pid " +
                                       std::to_string(peer.pid) + ") and remove the socket"};
}

Status refusal(const HolderHeader& header, const std::string& path) {
  const std::string number = std::to_string(header.number);
  switch (static_cast<HolderRefusal>(header.detail)) {
    case HolderRefusal::kOtherUser:
      return {Code::kPermissionDenied, "the holder at " + path + " serves only uid " + number +
                                           ", but amemd is uid " + std::to_string(::geteuid()) +
                                           ". Run both as the same user"};
    case HolderRefusal::kServesOther:
      return {Code::kFailedPrecondition,
              "the holder at " + path + " serves another amemd (pid " + number +
                  "). Stop that amemd, or choose another directory with --runtime-dir"};
    case HolderRefusal::kOtherVersion:
      return {Code::kUnimplemented,
              "the holder at " + path + " speaks version " + number + " and this amemd version " +
                  std::to_string(kHolderVersion) +
                  ", so amemd cannot take over what it keeps. End the jobs, then the amem-holder"};
    case HolderRefusal::kContainer:
      return {Code::kPermissionDenied,
              "the holder at " + path +
                  " refuses amemd because amemd is in another PID or user namespace than the "
                  "holder. Start both in one PID namespace (hostPID, --pid host)"};
    case HolderRefusal::kMalformed:
      break;
  }
  return {Code::kInternal, "the holder at " + path + " does not understand what amemd sent"};
}

}  // namespace

Result<std::unique_ptr<HolderClient>> HolderClient::connect(const std::string& path,
                                                            Duration limit) {
  const Result<sockaddr_un> address = unix_address(path);
  if (!address.ok()) return address.status();
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno_status(Code::kInternal, "socket for " + path, errno);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.value()),
                sizeof address.value()) != 0)
    return errno_status(
        errno == EACCES || errno == EPERM ? Code::kPermissionDenied : Code::kUnavailable,
        "connect to the holder at " + path, errno);
  if (Status status = check_server(socket.get(), path); !status.ok()) return status;
  std::unique_ptr<HolderClient> holder(new HolderClient(path, std::move(socket)));
  if (Status status = holder->greet(limit); !status.ok()) return status;
  return holder;
}

Status HolderClient::greet(Duration limit) {
  const Time until = Clock::now() + limit;
  // One that refuses may have closed its end already; its reason is still there to read.
  if (Status status = ask(HolderMessage::kHello, kHolderVersion, 0, until);
      !status.ok() && status.code() != Code::kUnavailable)
    return status;
  lost_ = false;
  HolderPacket packet;
  std::vector<Fd> fds;
  const Status status = receive(until, packet, fds);
  if (status.code() == Code::kDeadlineExceeded)
    return lose("it has not answered amemd's first message within " + format_duration(limit));
  if (!status.ok())
    return {Code::kAborted, "the holder at " + path_ + " ended while amemd connected"};
  if (packet.header.message == HolderMessage::kWelcome) return {};
  return heard(packet);
}

Result<std::map<HolderClient::Key, Fd>> HolderClient::list() {
  const Time until = Clock::now() + kListLimit;
  if (Status status = flush(); !status.ok()) return status;
  const std::uint64_t number = ++asked_;
  if (Status status = ask(HolderMessage::kList, number, 0, until); !status.ok()) return status;
  std::map<Key, Fd> all;
  std::size_t missing = 0;
  while (true) {
    HolderPacket packet;
    std::vector<Fd> fds;
    if (Status status = receive(until, packet, fds); !status.ok()) return status;
    const HolderHeader& header = packet.header;
    if (header.message != HolderMessage::kListed || header.number != number) {
      if (Status status = heard(packet); !status.ok()) return status;
      continue;
    }
    missing += header.count - fds.size();
    for (std::size_t i = 0; i < fds.size(); ++i) all[packet.keys[i]] = std::move(fds[i]);
    if (header.detail == 0) continue;
    if (missing == 0) return all;
    return Status(Code::kResourceExhausted,
                  std::to_string(missing) + " of " + std::to_string(missing + all.size()) +
                      " descriptors of the holder at " + path_ +
                      " did not arrive, because amemd may not open so many files. Raise its limit "
                      "of open files (LimitNOFILE)");
  }
}

void HolderClient::add(Change change) {
  if (!sends()) return;
  refused_.erase(change.key);
  changes_.push_back(std::move(change));
}

void HolderClient::put(Key key, SharedFd fd, std::uint32_t lane) {
  const int number = fd->get();
  add({key, true, number, std::move(fd), lane});
}

void HolderClient::put(Key key, int fd) { add({key, true, fd, nullptr, 0}); }

void HolderClient::drop(Key key) { add({key, false, -1, nullptr, 0}); }

Status HolderClient::cannot_send() const {
  if (lost_) return {Code::kUnavailable, why_};
  return {Code::kFailedPrecondition, "amemd has disconnected from the holder at " + path_};
}

Status HolderClient::has_everything() const {
  if (!sends()) return cannot_send();
  if (behind())
    return {Code::kUnavailable, "the holder at " + path_ + " has not taken " +
                                    std::to_string(changes_.size()) +
                                    " changes yet, so their memory would not outlive amemd"};
  if (!refused_.empty())
    return {Code::kUnavailable, "the holder at " + path_ + " had no space for " +
                                    std::to_string(refused_.size()) +
                                    " descriptors, so their memory would not outlive amemd. Raise "
                                    "its limit of open files (LimitNOFILE) and restart it"};
  return {};
}

Status HolderClient::flush(Duration limit) {
  if (!sends()) return cannot_send();
  const Status trouble = check();
  const Time until = Clock::now() + limit;
  Status status;
  // Letting go of a descriptor of held() may add a drop: it goes out in the next turn.
  while (status.ok() && !changes_.empty()) {
    std::vector<Change> changes = std::exchange(changes_, {});
    std::size_t sent = 0;
    while (status.ok() && sent < changes.size()) status = send_some(changes, sent, until);
    changes.erase(changes.begin(), changes.begin() + static_cast<std::ptrdiff_t>(sent));
    if (!sends()) break;
    changes.insert(changes.end(), std::make_move_iterator(changes_.begin()),
                   std::make_move_iterator(changes_.end()));
    changes_ = std::move(changes);
  }
  if (!status.ok()) return status;
  return trouble;
}

Status HolderClient::send_some(const std::vector<Change>& changes, std::size_t& first, Time until) {
  const bool puts = changes[first].puts;
  HolderPacket packet;
  packet.header.message = puts ? HolderMessage::kPut : HolderMessage::kDrop;
  const std::uint32_t lane = packet.header.detail = changes[first].lane;
  const auto fits = [&](const Change& change) {
    return change.puts == puts && change.lane == lane;
  };
  std::vector<int> fds;
  std::size_t next = first;
  for (; next < changes.size() && next - first < kMaxHeldPerPacket && fits(changes[next]); ++next) {
    packet.keys[packet.header.count++] = changes[next].key;
    if (puts) fds.push_back(changes[next].fd);
  }
  Status status = send(packet, fds, until);
  if (status.ok()) first = next;
  return status;
}

Status HolderClient::send(const HolderPacket& packet, const std::vector<int>& fds, Time until) {
  while (send_with<kMaxHeldPerPacket>(socket_.get(), &packet, packet.bytes(), fds.data(),
                                      fds.size()) < 0) {
    const int error = errno;
    if (error == EPIPE || error == ECONNRESET || error == ENOTCONN) return lose("it has ended");
    const bool full = error == EAGAIN || error == EWOULDBLOCK;
    // ETOOMANYREFS: more descriptors in flight than the user may have; the holder makes space.
    if (!full && error != ETOOMANYREFS)
      return errno_status(Code::kInternal, "sendmsg to the holder at " + path_, error);
    if (Clock::now() >= until)
      return {Code::kDeadlineExceeded, "the holder at " + path_ +
                                           " does not accept what amemd sends. The rest would not "
                                           "outlive amemd. amemd sends it again"};
    pollfd space{socket_.get(), POLLOUT, 0};
    if (full)
      ::poll(&space, 1, ms_until(until));
    else
      std::this_thread::sleep_for(kTryAgain);
  }
  return {};
}

Status HolderClient::ask(HolderMessage message, std::uint64_t number, std::uint32_t detail,
                         Time until) {
  HolderPacket packet;
  packet.header.detail = detail;
  packet.header.message = message;
  packet.header.number = number;
  return send(packet, {}, until);
}

Status HolderClient::receive(Time until, HolderPacket& packet, std::vector<Fd>& fds) {
  while (true) {
    fds.clear();
    const auto [n, flags] =
        receive_with<kMaxHeldPerPacket>(socket_.get(), &packet, sizeof packet, MSG_DONTWAIT,
                                        [&](Fd fd) { fds.push_back(std::move(fd)); });
    // It went without reading all that it was sent; what it said is still there.
    if (n < 0 && errno == ECONNRESET) continue;
    if (n == 0) return lose("it has ended");
    if (n > 0) {
      const bool lost = (flags & MSG_CTRUNC) != 0;
      if ((flags & MSG_TRUNC) == 0 &&
          is_whole(packet, static_cast<std::size_t>(n), fds.size(), lost))
        return {};
      return lose("it sent a packet that is not valid in the protocol");
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return lose(errno_status(Code::kInternal, "recvmsg", errno).text());
    if (Clock::now() >= until)
      return {Code::kDeadlineExceeded, "the holder at " + path_ + " has not answered in time"};
    pollfd more{socket_.get(), POLLIN, 0};
    ::poll(&more, 1, ms_until(until));
  }
}

Status HolderClient::heard(const HolderPacket& packet) {
  switch (packet.header.message) {
    case HolderMessage::kLost:
      refused_.insert(packet.keys, packet.keys + packet.header.count);
      return {Code::kResourceExhausted,
              "the holder at " + path_ + " has no space for " +
                  std::to_string(packet.header.count) +
                  " descriptors that amemd sent, so their memory would not outlive amemd. Raise "
                  "its limit of open files (LimitNOFILE)"};
    case HolderMessage::kRefused: {
      Status status = refusal(packet.header, path_);
      static_cast<void>(lose(status.text()));
      return status;
    }
    case HolderMessage::kAllClosed:
      if (closed_) closed_(packet.header.number);
      return {};
    case HolderMessage::kListed:  // an answer that came too late
      return {};
    default:
      return lose("it sent a packet that is not valid in the protocol");
  }
}

Status HolderClient::check() {
  if (lost_) return {Code::kUnavailable, why_};
  Status trouble;
  while (true) {
    HolderPacket packet;
    std::vector<Fd> fds;
    Status status = receive(Clock::now(), packet, fds);
    if (status.code() == Code::kDeadlineExceeded) return trouble;  // there is nothing more
    if (status.ok()) status = heard(packet);
    if (lost_) return status;
    if (!status.ok()) trouble = std::move(status);
  }
}

Result<std::uint64_t> HolderClient::ask_closed(std::uint32_t lane, Duration limit) {
  if (Status status = flush(limit); !status.ok()) return status;
  const std::uint64_t number = ++asked_;
  const Time until = Clock::now() + limit;
  if (Status status = ask(HolderMessage::kAwaitClosed, number, lane, until); !status.ok())
    return status;
  return number;
}

void HolderClient::detach() {
  detached_ = true;
  std::exchange(changes_, {}).clear();
}

Status HolderClient::lose(const std::string& why) {
  lost_ = true;
  why_ = "the holder at " + path_ + " is lost: " + why +
         ". The node's memory no longer outlives this amemd";
  std::exchange(changes_, {}).clear();
  return {Code::kUnavailable, why_};
}

SharedFd held(std::shared_ptr<HolderClient> holder, HolderKey key, SharedFd fd) {
  if (holder == nullptr) return fd;
  struct Dropping {
    Dropping(std::shared_ptr<HolderClient> at, HolderKey under, SharedFd what)
        : holder(std::move(at)), key(under), fd(std::move(what)) {}
    ~Dropping() { holder->drop(key); }
    Dropping(const Dropping&) = delete;
    Dropping& operator=(const Dropping&) = delete;
    std::shared_ptr<HolderClient> holder;
    HolderKey key;
    SharedFd fd;
  };
  auto dropping = std::make_shared<Dropping>(std::move(holder), key, std::move(fd));
  const Fd* part = dropping->fd.get();
  return {std::move(dropping), part};
}

}  // namespace amem
