#include "daemon/transactions/headroom.h"

#include <algorithm>

namespace amem {

std::uint64_t Headroom::reserve(std::uint64_t device_total) {
  return std::min<std::uint64_t>(256ULL << 20, device_total / 64);
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
