#include "daemon/control/entrance.h"

#include <utility>

namespace amem {
namespace {

constexpr std::uint64_t kDescriptors = 2;  // the socket, and Callers' copy

}  // namespace

void Entrance::take(Fd socket) {
  const Result<PeerCredentials> peer = peer_of(socket.get(), isolation_, accounts_);
  if (!peer.ok())
    return refusals_.warn("connection to {} refused: {}", listener_.path(), peer.status().text());
  Account& account = *peer.value().account;
  Caller caller = caller_of(peer.value(), isolation_, access_);
  const std::size_t has = callers_.count_of(account);
  const std::size_t all = callers_.count();
  if (!caller.operates && (has >= kMaxOfOwner || !leaves_a_share(has, all, kMaxOfOthers)))
    return account.refusals_log().warn(
        "connection of {} to {} refused: its owner has {} of {}, all have {} of {}", caller.who,
        listener_.path(), has, kMaxOfOwner, all, kMaxOfOthers);
  Amounts amounts;
  amounts[Resource::kDescriptors] = kDescriptors;
  Result<Charge> charge = account.take(amounts);
  if (!charge.ok())
    return account.refusals_log().warn("connection of {} to {} refused: {}", caller.who,
                                       listener_.path(), charge.status().text());
  const bool operates = caller.operates;
  if (callers_.connected(socket.get(), std::move(caller), std::move(charge).value()))
    serve_(std::move(socket), operates);
}

}  // namespace amem
