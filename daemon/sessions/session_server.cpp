#include "daemon/sessions/session_server.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/base/units.h"

namespace amem {
namespace {

constexpr int kPacketsPerTurn = 64;      // so that one busy rank does not keep the others waiting
constexpr std::size_t kAllocation = 16;  // what malloc adds to each
constexpr std::uint64_t kDescriptorsOfSession = 2;  // its socket and its process
constexpr Duration kRetry = std::chrono::milliseconds(5);

}  // namespace

SessionServer::~SessionServer() { shut(); }

std::size_t SessionServer::Outgoing::cost() const {
  return sizeof(Outgoing) + bytes.capacity() + fds.capacity() * sizeof(SharedFd) + 2 * kAllocation;
}

void SessionServer::shut() {
  listener_.shut();
  for (auto& [id, session] : sessions_) loop_.unwatch(session.watch);
  sessions_.clear();
}

void SessionServer::take(Fd socket) {
  Result<PeerCredentials> known = peer_of(socket.get(), isolation_, accounts_);
  if (!known.ok()) return refusals_.warn("amemd refuses a session: {}", known.status().text());
  const PeerCredentials& peer = known.value();
  const std::uint64_t has = peer.account->used(Resource::kSessions);
  // Who has no quota shares with nobody: it is root's, or the only one.
  const bool shares = peer.account->most(Resource::kSessions) != kNoQuota;
  if (sessions_.size() >= kMaxSessions ||
      (shares && !leaves_a_share(has, sessions_.size(), kMaxSessions)))
    return (shares ? peer.account->refusals_log() : refusals_)
        .warn("amemd refuses a session of pid {} ({}): this owner has {}, and {} of {} are in use",
              peer.pid, to_string(peer.account->owner()), has, sessions_.size(), kMaxSessions);
  Amounts amounts;
  amounts[Resource::kSessions] = 1;
  amounts[Resource::kDescriptors] = kDescriptorsOfSession;
  Result<Charge> charge = peer.account->take(amounts);
  if (!charge.ok())
    return peer.account->refusals_log().warn("amemd refuses a session of pid {}: {}", peer.pid,
                                             charge.status().text());
  const SessionId id = next_id_++;
  const EventLoop::WatchId watch = loop_.watch(
      socket.get(), EPOLLIN, [this, id](std::uint32_t events) { on_events(id, events); });
  if (watch == 0) return;
  Session& session = sessions_[id];
  session.socket = std::move(socket);
  session.account = peer.account;
  session.charge = std::move(charge).value();
  session.watch = watch;
  handler_.session_opened(id, peer);
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
  Outgoing out{std::move(bytes).value(), std::move(fds), answer, {}};
  if (session.queue.empty()) {
    const Status status = send_now(session, out);
    if (status.ok()) return;
    // A peer that has gone is found by reading: what it sent before comes first.
    if (status.code() == Code::kUnavailable) return;
    if (status.code() != Code::kResourceExhausted) return close(id, status.text());
    loop_.change(session.watch, EPOLLIN | EPOLLOUT);
  }
  Result<Charge> charge = session.account->take(Resource::kQueuedBytes, out.cost());
  if (!charge.ok()) return close(id, "it does not read: " + charge.status().text());
  out.charge = std::move(charge).value();
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
