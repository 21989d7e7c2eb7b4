#include "daemon/holder/server.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <utility>

#include "common/descriptors.h"
#include "daemon/base/peer.h"

namespace amem {
namespace {

constexpr int kPacketsPerTurn = 64;
constexpr char kLockSuffix[] = ".lock";
constexpr Duration kHelloLimit = std::chrono::seconds(10);
constexpr Duration kRetry = std::chrono::milliseconds(5);
/// Answers that wait: several times a list of all that a process can hold.
constexpr std::size_t kMaxQueue = 1U << 15;

HolderHeader header(HolderMessage message, std::uint64_t number) {
  HolderHeader made;
  made.message = message;
  made.number = number;
  return made;
}

/// To one that is not served; what does not fit into its socket at once is not said.
void refuse(int socket, HolderRefusal why, std::uint64_t number) {
  HolderHeader refusal = header(HolderMessage::kRefused, number);
  refusal.detail = static_cast<std::uint32_t>(why);
  send_with(socket, &refusal, sizeof refusal, nullptr, 0);
}

/// Whether nothing is in the folder but what a holder at `path` puts there.
bool has_only(const std::string& folder, const std::string& path) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path() != path && entry.path() != path + kLockSuffix) return false;
  return !error;
}

std::string of_descriptors(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " descriptor" : " descriptors");
}

std::string of_processes(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " living process" : " living processes");
}

}  // namespace

HolderServer::HolderServer(EventLoop& loop, HolderSettings settings, std::function<void()> over)
    : loop_(loop),
      settings_(std::move(settings)),
      over_(std::move(over)),
      refusals_(loop, "clients refused"),
      listener_(loop, [this](Fd socket) { take(std::move(socket)); }) {}

HolderServer::~HolderServer() {
  shut();
  for (auto& [key, entry] : entries_)
    if (entry.watch != 0) loop_.unwatch(entry.watch);
}

Status HolderServer::make_folder() const {
  const std::string folder = settings_.path.substr(0, settings_.path.rfind('/'));
  if (folder.empty() || folder == settings_.path) return {};
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return errno_status(Code::kFailedPrecondition, "create " + folder, errno);
  struct stat found {};
  if (::lstat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) ||
      (found.st_uid != ::geteuid() && found.st_uid != 0) || (found.st_mode & 0022) != 0)
    return {Code::kFailedPrecondition,
            folder + " is not a directory that only this user (uid " + std::to_string(::geteuid()) +
                ") can write to. Remove it, or choose another path with --socket"};
  if ((found.st_mode & 0077) == 0) return {};
  // Such as one that a kubelet has made for a mount.
  if (has_only(folder, settings_.path) && ::chmod(folder.c_str(), 0700) == 0) return {};
  spdlog::warn(
      "other users and their containers can see {}, where the holder's socket is. Choose a path in "
      "a folder of its own with --socket, and do not mount that folder into jobs",
      folder);
  return {};
}

Status HolderServer::lock() {
  const std::string path = settings_.path + kLockSuffix;
  lock_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) return errno_status(Code::kFailedPrecondition, "open " + path, errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return errno_status(Code::kInternal, "lock " + path, errno);
    char pid[32] = {};
    const ssize_t n = ::pread(lock_.get(), pid, sizeof pid - 1, 0);
    return {Code::kAlreadyExists, "another amem-holder (pid " +
                                      std::string(pid, n > 0 ? static_cast<std::size_t>(n) : 0) +
                                      ") serves " + settings_.path +
                                      ". Stop it, or choose another path with --socket"};
  }
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(lock_.get(), 0) != 0 ||
      ::pwrite(lock_.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()))
    return errno_status(Code::kInternal, "write " + path, errno);
  return {};
}

Status HolderServer::start() {
  if (Status status = make_folder(); !status.ok()) return status;
  if (Status status = lock(); !status.ok()) return status;
  Status status = settings_.listener
                      ? listener_.adopt(std::move(settings_.listener), settings_.path)
                      : listener_.open({settings_.path, 0600, {}}, SOCK_SEQPACKET);
  if (!status.ok()) return status;
  first_wait_ = loop_.at(Clock::now() + settings_.first_wait, [this] {
    first_wait_.reset();
    weigh();
  });
  return {};
}

void HolderServer::shut() {
  listener_.shut();
  if (first_wait_) loop_.cancel(*first_wait_);
  first_wait_.reset();
  if (client_) loop_.unwatch(client_->watch);
  client_.reset();
  lock_.reset();  // the next may come, however long it takes to close what this one has
}

void HolderServer::take(Fd socket) {
  const Result<Peer> found = peer_at(socket.get());
  if (!found.ok()) return;
  const Peer& peer = found.value();
  if (peer.uid != ::geteuid()) {
    refuse(socket.get(), HolderRefusal::kOtherUser, ::geteuid());
    return refusals_.warn(
        "the holder refuses pid {}: it is uid {}, and the holder serves only uid {}", peer.pid,
        peer.uid, ::geteuid());
  }
  // A container's root has the uid of amemd. A process that the holder does not see is one outside
  // of the container that the holder is in.
  if (peer.pid != 0 && !(shares_namespaces(peer.pid) && (peer.lives() || !kernel_tells_ends()))) {
    refuse(socket.get(), HolderRefusal::kContainer, static_cast<std::uint64_t>(peer.pid));
    return refusals_.warn(
        "the holder refuses pid {}: it has ended, or is in another PID or user namespace, such as "
        "a container. If it is amemd, start both in one PID namespace (hostPID, --pid host)",
        peer.pid);
  }
  // The first may have ended just now, and its end may be further down in its socket.
  if (client_) read(std::numeric_limits<int>::max());
  if (client_ && client_->greeted) {
    refuse(socket.get(), HolderRefusal::kServesOther, static_cast<std::uint64_t>(client_->pid));
    return refusals_.warn("the holder refuses pid {}: it already serves pid {}", peer.pid,
                          client_->pid);
  }
  if (client_) leave("another one connected before its first message");
  if (is_over_) return;
  const EventLoop::WatchId watch =
      loop_.watch(socket.get(), EPOLLIN, [this](std::uint32_t events) { on_events(events); });
  if (watch == 0) return spdlog::error("cannot watch the socket of pid {}", peer.pid);
  client_ = Client{};
  client_->id = ++last_id_;
  client_->pid = peer.pid;
  client_->socket = std::move(socket);
  client_->watch = watch;
  loop_.at(Clock::now() + kHelloLimit, [this, id = client_->id] {
    if (client_ && client_->id == id && !client_->greeted) leave("it has sent nothing for 10 s");
  });
}

void HolderServer::on_events(std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) flush();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read(kPacketsPerTurn);
}

bool HolderServer::read(int packets) {
  for (int i = 0; i < packets && client_; ++i) {
    HolderPacket packet;
    std::vector<Fd> fds;
    const auto [n, flags] =
        receive_with<kMaxHeldPerPacket>(client_->socket.get(), &packet, sizeof packet, MSG_DONTWAIT,
                                        [&](Fd fd) { fds.push_back(std::move(fd)); });
    // It went without reading all that it was sent; what it sent itself is still there.
    if (n < 0 && errno == ECONNRESET) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) {
      leave("");
      return true;
    }
    const bool lost = (flags & MSG_CTRUNC) != 0;
    const bool whole =
        (flags & MSG_TRUNC) == 0 && is_whole(packet, static_cast<std::size_t>(n), fds.size(), lost);
    if (whole)
      handle(packet, std::move(fds), lost);
    else
      break_with(HolderRefusal::kMalformed, 0);
  }
  return !client_;
}

void HolderServer::handle(const HolderPacket& packet, std::vector<Fd> fds, bool lost) {
  const HolderMessage message = packet.header.message;
  if (!client_->greeted) {
    if (message != HolderMessage::kHello) return break_with(HolderRefusal::kMalformed, 0);
    return greet(packet.header.number);
  }
  if (lost)
    spdlog::error(
        "{} of {} from pid {} did not arrive: the holder may not open more than {}. Raise the "
        "limit of open files (LimitNOFILE)",
        packet.header.count - fds.size(), of_descriptors(packet.header.count), client_->pid,
        size() + fds.size());
  switch (message) {
    case HolderMessage::kPut:
      return put(packet, std::move(fds));
    case HolderMessage::kDrop:
      for (std::size_t i = 0; i < packet.header.count; ++i) drop(packet.keys[i]);
      return;
    case HolderMessage::kList:
      return list(packet.header.number);
    case HolderMessage::kAwaitClosed:
      return await_closed({packet.header.number, packet.header.detail});
    default:
      return break_with(HolderRefusal::kMalformed, 0);
  }
}

void HolderServer::greet(std::uint64_t version) {
  if (version != kHolderVersion) return break_with(HolderRefusal::kOtherVersion, kHolderVersion);
  client_->greeted = true;
  if (first_wait_) loop_.cancel(*first_wait_);
  first_wait_.reset();
  spdlog::info("the holder serves amemd (pid {}) with {}", client_->pid, of_descriptors(size()));
  send({header(HolderMessage::kWelcome, kHolderVersion), {}, {}});
}

void HolderServer::put(const HolderPacket& packet, std::vector<Fd> fds) {
  Outgoing lost{header(HolderMessage::kLost, 0), {}, {}};
  for (std::size_t i = 0; i < packet.header.count; ++i) {
    const HolderKey key = packet.keys[i];
    drop(key);
    if (i >= fds.size()) {  // the kernel delivers those that there is space for in order
      lost.keys.push_back(key);
      continue;
    }
    Entry& entry = entries_[key];
    entry.fd = closer(packet.header.detail).shared(std::move(fds[i]));
    if (kind_of(key) != HolderKind::kProcess) continue;
    // What cannot be watched is not a process, so nothing lives there.
    entry.watch = loop_.watch(entry.fd->get(), EPOLLIN, [this, key](std::uint32_t) {
      Entry& ended = entries_.at(key);
      loop_.unwatch(std::exchange(ended.watch, 0));
      --living_;
      weigh();
    });
    if (entry.watch != 0) ++living_;
  }
  if (!lost.keys.empty()) send(std::move(lost));
}

void HolderServer::drop(HolderKey key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  if (it->second.watch != 0) {
    loop_.unwatch(it->second.watch);
    --living_;
  }
  entries_.erase(it);
}

void HolderServer::list(std::uint64_t number) {
  auto it = entries_.begin();
  bool last = false;
  while (!last && client_) {
    Outgoing out{header(HolderMessage::kListed, number), {}, {}};
    for (; it != entries_.end() && out.keys.size() < kMaxHeldPerPacket; ++it) {
      out.keys.push_back(it->first);
      out.fds.push_back(it->second.fd);
    }
    last = it == entries_.end();
    out.header.detail = last ? 1 : 0;
    send(std::move(out));
  }
}

Closer& HolderServer::closer(std::uint32_t lane) { return closers_[lane % kHolderLanes]; }

void HolderServer::await_closed(const AwaitClosed& asked) {
  if (!client_->queue.empty()) return client_->awaiting_closed.push_back(asked);
  closer(asked.lane).then([this, number = asked.number, id = client_->id] {
    loop_.post([this, number, id] {
      if (client_ && client_->id == id) send({header(HolderMessage::kAllClosed, number), {}, {}});
    });
  });
}

void HolderServer::send(Outgoing out) {
  if (client_->queue.size() >= kMaxQueue) return leave("it does not read");
  out.header.count = static_cast<std::uint16_t>(out.keys.size());
  client_->queue.push_back(std::move(out));
  if (client_->queue.size() == 1) flush();
}

void HolderServer::flush() {
  bool progress = false;
  while (!client_->queue.empty()) {
    const Outgoing& out = client_->queue.front();
    HolderPacket packet;
    packet.header = out.header;
    std::copy(out.keys.begin(), out.keys.end(), packet.keys);
    int fds[kMaxHeldPerPacket];
    std::transform(out.fds.begin(), out.fds.end(), fds,
                   [](const SharedFd& fd) { return fd->get(); });
    if (send_with<kMaxHeldPerPacket>(client_->socket.get(), &packet, packet.bytes(), fds,
                                     out.fds.size()) < 0) {
      const bool full = errno == EAGAIN || errno == EWOULDBLOCK;
      if (!full && errno != ETOOMANYREFS) break;  // it has gone; reading finds it
      // Too many descriptors in flight show in no poll.
      if (full || progress) return loop_.change(client_->watch, EPOLLIN | EPOLLOUT);
      loop_.change(client_->watch, EPOLLIN);
      loop_.at(Clock::now() + kRetry, [this, id = client_->id] {
        if (client_ && client_->id == id) flush();
      });
      return;
    }
    progress = true;
    client_->queue.pop_front();
  }
  client_->queue.clear();
  loop_.change(client_->watch, EPOLLIN);
  for (const AwaitClosed& asked : std::exchange(client_->awaiting_closed, {})) await_closed(asked);
}

void HolderServer::break_with(HolderRefusal why, std::uint64_t number) {
  refuse(client_->socket.get(), why, number);
  leave(why == HolderRefusal::kOtherVersion ? "it speaks another version of the protocol"
                                            : "it sent a packet that is not valid in the protocol");
}

void HolderServer::leave(const std::string& why) {
  loop_.unwatch(client_->watch);
  const pid_t pid = client_->pid;
  client_.reset();
  if (why.empty())
    spdlog::info("amemd (pid {}) has ended. The holder keeps {} for {}", pid,
                 of_descriptors(size()), of_processes(living_));
  else
    spdlog::warn("amemd (pid {}) was disconnected: {}. The holder keeps {} for {}", pid, why,
                 of_descriptors(size()), of_processes(living_));
  weigh();
}

void HolderServer::weigh() {
  if (client_ || first_wait_ || living_ > 0 || is_over_) return;
  if (settings_.stay) {
    if (entries_.empty()) return;
    spdlog::info(
        "no amemd is connected and no process lives. The holder closes {}, which nobody needs",
        of_descriptors(size()));
    while (!entries_.empty()) drop(entries_.begin()->first);
    return;
  }
  is_over_ = true;
  spdlog::info(
      "no amemd is connected and no process lives. The holder ends with {}, which nobody needs",
      of_descriptors(size()));
  over_();
}

}  // namespace amem
