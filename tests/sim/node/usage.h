// How much memory of each simulated device is in use, according to the kernel.
//
// Every simulated allocation is a memfd whose name tells node, device and size. What is in use is
// what somebody still holds: a descriptor, also one on its way through a socket, or a mapping. For
// that each open file has a lock (HoldMemory), which the kernel lets go with the last of them; the
// locks' ends name node, device and size, and /proc/locks lists them. No bookkeeping of ours can
// disagree with that. A file in the node's directory keeps an upper bound per device, under flock;
// only when the bound would exceed the capacity is it brought down to the truth.
//
// Any thread, any process; also in a forked child.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace sim {

inline constexpr int kHostMemory = -1;

/// What the name of a memfd says.
struct MemoryName {
  int device = kHostMemory;  // physical ordinal, or kHostMemory
  uint64_t bytes = 0;
  unsigned flags = 0;  // kRdmaCapable
  int owner = device;  // memory of the host belongs to the first device that its maker sees

  static constexpr unsigned kRdmaCapable = 1;

  std::string Format() const;

  /// Parses the target of a /proc/PID/fd link or the path in /proc/PID/maps. Nothing if it is no
  /// memory of this node.
  static std::optional<MemoryName> Parse(const std::string& path);
};

/// Makes the memory behind `fd` count for as long as somebody holds this open file. False if the
/// kernel has no such locks.
bool HoldMemory(int fd, const MemoryName& name);

/// Bytes in use per physical device. Brings the bound down too.
std::vector<uint64_t> UsedBytes();

/// Calls `create` if `bytes` more fit on `device`; true if it was called. `create` must make the
/// memfd and return quickly: the node's lock is held, so that nobody scans between admission and
/// creation.
bool Admit(int device, uint64_t bytes, const std::function<void()>& create);

}  // namespace sim
