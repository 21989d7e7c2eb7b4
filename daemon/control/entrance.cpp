#include "daemon/control/entrance.h"

#include <sys/epoll.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/numbers.h"

namespace amem {
namespace {

constexpr std::uint64_t kDescriptors = 3;  // the socket, Callers' copy, and the caller's process

}  // namespace

Callers::~Callers() {
  for (auto& [socket, connection] : connections_) loop_.unwatch(connection.watch);
}

bool Callers::connected(int socket, Caller caller, Charge charge) {
  Connection connection;
  connection.copy = Fd(::fcntl(socket, F_DUPFD_CLOEXEC, 0));
  if (!connection.copy) return false;
  connection.watch = loop_.watch(connection.copy.get(), 0, [this, socket](std::uint32_t) {
    const std::lock_guard lock(mutex_);
    const auto it = connections_.find(socket);
    if (it == connections_.end()) return;
    loop_.unwatch(it->second.watch);
    connections_.erase(it);
  });
  if (connection.watch == 0) return false;
  connection.caller = std::move(caller);
  connection.charge = std::move(charge);
  const std::lock_guard lock(mutex_);
  const auto [it, added] = connections_.try_emplace(socket);
  if (!added) loop_.unwatch(it->second.watch);  // it has hung up, and the loop has not seen it yet
  it->second = std::move(connection);
  return true;
}

std::optional<Caller> Callers::of(const std::string& peer) const {
  constexpr std::string_view kPrefix = "fd:";
  if (!peer.starts_with(kPrefix)) return std::nullopt;
  const auto socket = number_of_text<int>(std::string_view(peer).substr(kPrefix.size()));
  if (!socket) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(*socket);
  return it != connections_.end() ? std::optional(it->second.caller) : std::nullopt;
}

std::size_t Callers::count_of(const Account& owner) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(connections_.begin(), connections_.end(), [&](const auto& connection) {
        const Caller& caller = connection.second.caller;
        return !caller.operates && caller.account.get() == &owner;
      }));
}

std::size_t Callers::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const auto& connection) { return !connection.second.caller.operates; }));
}

std::size_t Callers::connections() const {
  const std::lock_guard lock(mutex_);
  return connections_.size();
}

void Entrance::take(Fd socket) {
  const Result<PeerCredentials> peer = peer_of(socket.get(), isolation_, accounts_);
  if (!peer.ok())
    return refusals_.warn("amemd refuses a connection to {}: {}", listener_.path(),
                          peer.status().text());
  Account& account = *peer.value().account;
  Caller caller = caller_of(peer.value(), isolation_, access_);
  const std::size_t has = callers_.count_of(account);
  const std::size_t all = callers_.count();
  if (!caller.operates && (has >= kMaxOfOwner || !leaves_a_share(has, all, kMaxOfOthers)))
    return account.refusals_log().warn(
        "amemd refuses a connection of {} to {}: its owner has {} of {}, and all owners have {} of "
        "{}",
        caller.who, listener_.path(), has, kMaxOfOwner, all, kMaxOfOthers);
  Amounts amounts;
  amounts[Resource::kDescriptors] = kDescriptors;
  Result<Charge> charge = account.take(amounts);
  if (!charge.ok())
    return account.refusals_log().warn("amemd refuses a connection of {} to {}: {}", caller.who,
                                       listener_.path(), charge.status().text());
  const bool operates = caller.operates;
  if (callers_.connected(socket.get(), std::move(caller), std::move(charge).value()))
    serve_(std::move(socket), operates);
}

}  // namespace amem
