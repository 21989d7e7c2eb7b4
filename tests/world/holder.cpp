#include "tests/world/holder.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "common/descriptors.h"
#include "tests/world/check.h"
#include "tests/world/death.h"

namespace amem::world {

StandInHolder::StandInHolder(const std::string& path)
    : path_(path), listener_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ::unlink(path.c_str());
  require(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
              ::listen(listener_.get(), 4) == 0,
          "the holder listens");
}

void StandInHolder::serve() {
  const death::Others not_the_broker;
  if (death::came()) return refuse();
  if (!client_)
    client_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  while (client_) {
    HolderPacket packet;
    std::vector<Fd> fds;
    const Received got =
        receive_with<kMaxHeldPerPacket>(client_.get(), &packet, sizeof packet, MSG_DONTWAIT,
                                        [&](Fd fd) { fds.push_back(std::move(fd)); });
    if (got.bytes <= 0) return;  // where it has gone lose_client() says so
    require(is_whole(packet, static_cast<std::size_t>(got.bytes), fds.size(), false),
            "what the holder is sent is whole");
    handle(packet, std::move(fds));
  }
}

void StandInHolder::get_some(int socket, const msghdr& sent, std::uint64_t chance) {
  sockaddr_un peer{};
  socklen_t length = sizeof peer;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) != 0 ||
      path_ != peer.sun_path)
    return;
  const auto& packet = *static_cast<const HolderPacket*>(sent.msg_iov->iov_base);
  if (packet.header.message != HolderMessage::kPut) return;
  const cmsghdr* const control = CMSG_FIRSTHDR(&sent);
  require(control != nullptr && control->cmsg_type == SCM_RIGHTS, "what is put comes along");
  const auto* const fds = reinterpret_cast<const int*>(CMSG_DATA(control));
  for (std::size_t i = 0; i < chance % packet.header.count; ++i)
    entries_.insert_or_assign(packet.keys[i], Fd(::fcntl(fds[i], F_DUPFD_CLOEXEC, 0)));
}

void StandInHolder::add_to(Digest& digest) const {
  digest.add(entries_.size());
  for (const auto& [key, fd] : entries_) digest.add(static_cast<std::uint64_t>(key));
}

/// What is dead yet looks for another holder must not wait for one: its time stands still.
void StandInHolder::refuse() {
  const Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  HolderPacket packet;
  packet.header.message = HolderMessage::kRefused;
  packet.header.detail = static_cast<std::uint32_t>(HolderRefusal::kMalformed);
  if (socket) (void)send_with<kMaxHeldPerPacket>(socket.get(), &packet, packet.bytes(), nullptr, 0);
}

void StandInHolder::handle(const HolderPacket& packet, std::vector<Fd> fds) {
  const HolderHeader& header = packet.header;
  switch (header.message) {
    case HolderMessage::kHello:
      return send(HolderMessage::kWelcome, kHolderVersion);
    case HolderMessage::kPut:
      for (std::size_t i = 0; i < header.count; ++i)
        entries_.insert_or_assign(packet.keys[i], std::move(fds[i]));
      return;
    case HolderMessage::kDrop:
      for (std::size_t i = 0; i < header.count; ++i) entries_.erase(packet.keys[i]);
      return;
    case HolderMessage::kList: {
      std::vector<HolderKey> keys;
      for (const auto& [key, fd] : entries_) {
        if (keys.size() == kMaxHeldPerPacket) {
          send(HolderMessage::kListed, header.number, 0, keys);
          keys.clear();
        }
        keys.push_back(key);
      }
      return send(HolderMessage::kListed, header.number, 1, keys);
    }
    case HolderMessage::kAwaitClosed:
      return send(HolderMessage::kAllClosed, header.number);
    default:
      require(false, "the holder is sent what is a client's to send");
  }
}

void StandInHolder::send(HolderMessage message, std::uint64_t number, std::uint32_t detail,
                         const std::vector<HolderKey>& keys) {
  HolderPacket packet;
  packet.header = {message, static_cast<std::uint16_t>(keys.size()), detail, number};
  std::copy(keys.begin(), keys.end(), packet.keys);
  std::vector<int> fds;
  for (const HolderKey key : keys) fds.push_back(entries_.at(key).get());
  require(send_with<kMaxHeldPerPacket>(client_.get(), &packet, packet.bytes(), fds.data(),
                                       fds.size()) > 0,
          "the holder's answer is taken");
}

/// Without a client and without a process that lives a holder ends.
void StandInHolder::lose_client() {
  client_.reset();
  if (!somebody_lives()) entries_.clear();
}

void StandInHolder::die() {
  client_.reset();
  entries_.clear();
}

bool StandInHolder::somebody_lives() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const auto& entry) {
    pollfd process{entry.second.get(), POLLIN, 0};
    return kind_of(entry.first) == HolderKind::kProcess && ::poll(&process, 1, 0) == 0;
  });
}

}  // namespace amem::world
