// The packets between amemd and amem-holder, on a SOCK_SEQPACKET Unix socket of the node.
//
// Every packet is a HolderHeader and `count` keys, in this machine's byte order; nothing else is
// accepted. kPut and kListed carry a descriptor for each of their keys, in order; no other does.
// What is put is in a lane: descriptors of one lane are closed in order, and one whose close hangs
// holds up its own lane only. A holder without lanes takes all for one.
// The client says kHello first. The holder answers kHello, kList and kAwaitClosed; kLost and
// kRefused come unasked. Plain values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace amem {

/// A descriptor's key: its kind in the top byte, the rest an id that is amemd's own.
using HolderKey = std::uint64_t;

enum class HolderKind : std::uint8_t {
  kRecord = 1,    // a memfd: what amemd writes down for its successor
  kMemory = 2,    // memory on a device
  kIncoming = 3,  // memory on a device that a resume is filling
  kSegment = 4,   // of the pool
  kProcess = 5,   // a rank's pidfd; the holder looks at these
};

inline constexpr int kHolderKindShift = 56;
inline constexpr std::uint64_t kMaxHolderId = (std::uint64_t{1} << kHolderKindShift) - 1;

/// REQUIRES: id <= kMaxHolderId.
constexpr HolderKey holder_key(HolderKind kind, std::uint64_t id) {
  return static_cast<std::uint64_t>(kind) << kHolderKindShift | id;
}
constexpr HolderKind kind_of(HolderKey key) {
  return static_cast<HolderKind>(key >> kHolderKindShift);
}
constexpr std::uint64_t id_of(HolderKey key) { return key & kMaxHolderId; }

/// Counts up when packets or their meaning change: a holder outlives the amemd that started it, and
/// may meet a newer one.
inline constexpr std::uint64_t kHolderVersion = 1;

/// Lanes are taken modulo this.
inline constexpr std::uint32_t kHolderLanes = 64;

/// The most descriptors that the kernel takes with one packet (SCM_MAX_FD).
inline constexpr std::size_t kMaxHeldPerPacket = 253;

enum class HolderMessage : std::uint16_t {
  // From amemd.
  kHello = 1,  // number: kHolderVersion
  kPut = 2,    // keys with descriptors; one that is there is replaced; detail: their lane
  kDrop = 3,   // keys; one that is not there is left out
  kList = 4,   // number: any; all that was put before and not dropped
  kAwaitClosed =
      5,  // number: any; detail: a lane; answered when all that was dropped from it is closed
  // From the holder.
  kWelcome = 16,    // number: kHolderVersion
  kRefused = 17,    // detail: HolderRefusal; number: as it says; then the socket is closed
  kListed = 18,     // number: the kList's; keys with descriptors; detail: 1 in the last one
  kAllClosed = 19,  // number: the kAwaitClosed's
  kLost = 20,       // keys whose descriptors did not arrive: the holder has nothing under them now
};

enum class HolderRefusal : std::uint32_t {
  kOtherUser = 1,     // number: the uid that the holder serves
  kServesOther = 2,   // number: the pid of the amemd that is connected
  kOtherVersion = 3,  // number: the holder's kHolderVersion
  kMalformed = 4,     // a packet broke the rules above
  kContainer = 5,     // number: the pid of the client, which is in other namespaces than the holder
};

struct HolderHeader {
  HolderMessage message{};
  std::uint16_t count = 0;  // of keys
  std::uint32_t detail = 0;
  std::uint64_t number = 0;
};

struct HolderPacket {
  HolderHeader header;
  HolderKey keys[kMaxHeldPerPacket]{};

  std::size_t bytes() const { return sizeof header + header.count * sizeof keys[0]; }
};
static_assert(sizeof(HolderHeader) == 16);
static_assert(offsetof(HolderPacket, keys) == sizeof(HolderHeader));

/// Whether so many bytes and descriptors are a packet; `lost`: the kernel had no space for all of
/// the descriptors (MSG_CTRUNC).
inline bool is_whole(const HolderPacket& packet, std::size_t bytes, std::size_t fds, bool lost) {
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
    case HolderMessage::kAwaitClosed:
    case HolderMessage::kWelcome:
    case HolderMessage::kRefused:
    case HolderMessage::kAllClosed:
      return fds == 0 && count == 0 && !lost;
  }
  return false;
}

}  // namespace amem
