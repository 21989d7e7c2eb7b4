#include "daemon/holder/wire.h"

namespace amem {

bool is_whole(const HolderPacket& packet, std::size_t bytes, std::size_t fds, bool lost) {
  if (bytes < sizeof packet.header || packet.header.count > kMaxHeldPerPacket ||
      bytes != packet.bytes())
    return false;
  const std::size_t count = packet.header.count;
  switch (packet.header.message) {
    case HolderMessage::kPut:
    case HolderMessage::kListed:
      return lost ? fds <= count : fds == count;
    case HolderMessage::kDrop:
    case HolderMessage::kLost:
      return fds == 0 && !lost;
    case HolderMessage::kHello:
    case HolderMessage::kList:
    case HolderMessage::kSettle:
    case HolderMessage::kWelcome:
    case HolderMessage::kRefused:
    case HolderMessage::kSettled:
      return fds == 0 && count == 0 && !lost;
  }
  return false;
}

}  // namespace amem
