#include "daemon/transactions/headroom.h"

#include <algorithm>

namespace amem {

std::uint64_t Headroom::reserve(std::uint64_t device_total) {
  return std::min<std::uint64_t>(256ULL << 20, device_total / 64);
}

/// What became free is free again once all groups are paused, whoever freed it. A tenth more need
/// not be, and no resume could ever have it then.
std::uint64_t Headroom::for_restore(std::uint64_t freed, std::uint64_t most,
                                    std::uint64_t device_total) {
  const std::uint64_t in_reach = most - std::min(most, reserve(device_total));
  return std::max(freed, std::min(freed + freed / 10, in_reach));
}

bool Headroom::take(const DeviceUuid& device, std::uint64_t bytes) {
  const auto it = left_.find(device);
  if (it == left_.end()) return true;
  if (it->second == kExhausted || it->second < bytes) return false;
  it->second -= bytes;
  return true;
}

void Headroom::give_back(const DeviceUuid& device, std::uint64_t bytes) {
  const auto it = left_.find(device);
  if (it == left_.end()) return;
  it->second = it->second == kExhausted ? bytes : it->second + bytes;
}

void Headroom::exhaust(const DeviceUuid& device) {
  if (const auto it = left_.find(device); it != left_.end()) it->second = kExhausted;
}

}  // namespace amem
