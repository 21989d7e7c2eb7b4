// StandInHolder: stands for amem-holder (daemon/holder): speaks its protocol and keeps what it is
// given, but in this thread, and whenever it is told to go on. So what happens does not depend on
// when the system would let it run.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/fd.h"
#include "daemon/holder/wire.h"
#include "tests/world/digest.h"

namespace amem::world {

class StandInHolder {
 public:
  /// Listens there.
  explicit StandInHolder(const std::string& path);

  /// Does what it has been asked.
  void serve();
  /// The broker dies instead of sending this packet. Where it is one of descriptors to keep for the
  /// holder, it gets some of them, `chance` says how many: with more before them they would have
  /// gone in more packets.
  void get_some(int socket, const msghdr& packet, std::uint64_t chance);
  /// The broker has ended.
  void lose_client();
  /// It ends, and another one, that has nothing, listens in its place.
  void die();
  /// Which descriptors it has.
  void add_to(Digest& digest) const;
  bool has_anything() const { return !entries_.empty(); }

 private:
  void refuse();
  void handle(const HolderPacket& packet, std::vector<Fd> fds);
  void send(HolderMessage message, std::uint64_t number, std::uint32_t detail = 0,
            const std::vector<HolderKey>& keys = {});
  bool somebody_lives() const;

  const std::string path_;
  Fd listener_;
  Fd client_;
  std::map<HolderKey, Fd> entries_;
};

}  // namespace amem::world
