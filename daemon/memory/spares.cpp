#include "daemon/memory/spares.h"

#include <algorithm>
#include <utility>

namespace amem {

MemoryKind kind_of(const Allocation& a) {
  return {a.charge.account().get(), a.device, a.size, a.gpu_direct_rdma};
}

void Spares::put(const MemoryKind& kind, SharedFd fd, Time until) {
  by_kind_[kind].push_back({std::move(fd), until});
}

SharedFd Spares::take(const MemoryKind& kind) {
  const auto it = by_kind_.find(kind);
  if (it == by_kind_.end()) return nullptr;
  SharedFd fd = std::move(it->second.back().fd);
  it->second.pop_back();
  if (it->second.empty()) by_kind_.erase(it);
  return fd;
}

std::map<MemoryKind, std::vector<SharedFd>> Spares::take_but(const KindCounts& these) {
  std::map<MemoryKind, std::vector<SharedFd>> rest;
  for (auto& [kind, spares] : by_kind_) {
    const auto stay = these.find(kind);
    const std::size_t count = stay != these.end() ? stay->second : 0;
    for (; spares.size() > count; spares.pop_back())
      rest[kind].push_back(std::move(spares.back().fd));
  }
  std::erase_if(by_kind_, [](const auto& each) { return each.second.empty(); });
  return rest;
}

std::vector<SharedFd> Spares::take_if(
    const std::function<bool(const MemoryKind&, Time until)>& goes) {
  std::vector<SharedFd> taken;
  for (auto& [kind, spares] : by_kind_)
    std::erase_if(spares, [&, &of = kind](Spare& spare) {
      if (!goes(of, spare.until)) return false;
      taken.push_back(std::move(spare.fd));
      return true;
    });
  std::erase_if(by_kind_, [](const auto& each) { return each.second.empty(); });
  return taken;
}

std::optional<Time> Spares::first_until() const {
  std::optional<Time> first;
  for (const auto& [kind, spares] : by_kind_)
    for (const Spare& spare : spares) first = std::min(first.value_or(spare.until), spare.until);
  return first;
}

std::size_t Spares::count(const MemoryKind& kind) const {
  const auto it = by_kind_.find(kind);
  return it != by_kind_.end() ? it->second.size() : 0;
}

std::uint64_t Spares::bytes(const DeviceUuid& device) const {
  std::uint64_t bytes = 0;
  for (const auto& [kind, spares] : by_kind_)
    if (kind.device == device) bytes += kind.size * spares.size();
  return bytes;
}

}  // namespace amem
