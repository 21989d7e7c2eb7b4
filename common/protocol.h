// Numbers and small types that both ends of a session agree on. The messages are in
// proto/amem/v1/session.proto.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace amem {

/// Raised whenever an old shim and a new broker would misunderstand each other.
inline constexpr std::uint32_t kProtocolVersion = 15;

/// Copy::segment of a load that clears its range instead of reading the pool.
inline constexpr std::uint32_t kZeroSegment = 0xffffffffU;

inline constexpr std::size_t kMaxCopiesPerMessage = 256;    // session.options: Copies.copies
inline constexpr std::size_t kMaxPiecesPerMessage = 256;    // session.options: Saved.pieces
inline constexpr std::size_t kMaxRangesPerMessage = 256;    // session.options: Measure.ranges
inline constexpr std::size_t kMaxSectionsPerMessage = 256;  // session.options: Measured.sections
inline constexpr std::size_t kMaxMasksPerMessage = 2048;    // session.options: Measured.masks
inline constexpr std::size_t kMaxMapsPerMessage =
    128;  // session.options: Map.ids, Make.ids, Made.ids; also descriptors per packet
inline constexpr std::size_t kMaxItemsPerInventory = 256;      // session.options: Inventory.items
inline constexpr std::size_t kMaxUnknownCallsPerMessage = 32;  // session.options
inline constexpr std::size_t kMaxDevices = 64;  // session.options: CutStatus.devices, Hello.devices
inline constexpr std::size_t kMaxTags = 64;     // session.options: GroupRequest.tags, Release.tags

/// Who has paused a group whose ranks have asked for it: Quiesce.paused_by, Welcome.paused_by.
inline constexpr std::string_view kPausedByItself = "the group itself";

inline constexpr std::string_view kSessionSocket = "session.sock";
inline constexpr std::string_view kControlSocket = "control.sock";

using Token = std::array<std::uint8_t, 16>;

/// A device's name on the wire: the CUDA UUID. Ordinals differ between processes and never leave
/// one.
struct DeviceUuid {
  std::array<std::uint8_t, 16> bytes{};

  friend bool operator==(const DeviceUuid&, const DeviceUuid&) = default;
  friend auto operator<=>(const DeviceUuid&, const DeviceUuid&) = default;
};

inline DeviceUuid make_uuid(const void* sixteen_bytes) {
  DeviceUuid uuid;
  std::memcpy(uuid.bytes.data(), sixteen_bytes, uuid.bytes.size());
  return uuid;
}

/// What a process sees of the node's devices, by its ordinals.
using VisibleDevices = std::vector<DeviceUuid>;

/// "GPU-01234567-89ab-cdef-0123-456789abcdef", as the driver's tools print it.
std::string to_string(const DeviceUuid& uuid);

/// 1 to 63 characters of [A-Za-z0-9._-], not starting with '.' or '-'.
bool valid_group_name(std::string_view name);
/// NAME[:JOB] (common/job.h).
bool valid_whole_name(std::string_view whole);
/// NAME[:JOB][@OWNER]: a group's whole name, with its owner as an operator calls another one's.
bool valid_group_address(std::string_view address);

/// Where the sockets are when nobody says: $AMEM_RUNTIME_DIR; else /run/amem when it exists or we
/// are root; else $XDG_RUNTIME_DIR/amem; else /tmp/amem-<uid>.
std::string default_runtime_dir();

}  // namespace amem
