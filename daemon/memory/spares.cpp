#include "daemon/memory/spares.h"

#include <algorithm>
#include <utility>

namespace amem {

MemoryKind kind_of(const Allocation& a) {
  return {a.charge.account().get(), a.device, a.size, a.gpu_direct_rdma};
}

void Spares::put(const MemoryKind& kind, Spare spare, Time until) {
  const AllocationId from = spare.from;
  by_kind_[kind].emplace(from, Waiting{std::move(spare), until});
}

Spare Spares::take(const MemoryKind& kind, AllocationId of) {
  const auto it = by_kind_.find(kind);
  if (it == by_kind_.end()) return {};
  auto taken = it->second.find(of);
  // The last one. If this took the next allocation's spare, each later one would lack its own.
  if (taken == it->second.end()) --taken;
  Spare spare = std::move(taken->second.spare);
  it->second.erase(taken);
  if (it->second.empty()) by_kind_.erase(it);
  return spare;
}

std::map<MemoryKind, std::vector<SharedFd>> Spares::take_but(const KindCounts& these) {
  std::map<MemoryKind, std::vector<SharedFd>> rest;
  for (auto& [kind, spares] : by_kind_) {
    const auto stay = these.find(kind);
    const std::size_t count = stay != these.end() ? stay->second : 0;
    while (spares.size() > count) {
      rest[kind].push_back(std::move(spares.begin()->second.spare.fd));
      spares.erase(spares.begin());
    }
  }
  std::erase_if(by_kind_, [](const auto& each) { return each.second.empty(); });
  return rest;
}

std::vector<SharedFd> Spares::take_if(
    const std::function<bool(const MemoryKind&, Time until)>& goes) {
  std::vector<SharedFd> taken;
  for (auto& [kind, spares] : by_kind_)
    for (auto it = spares.begin(); it != spares.end();) {
      if (!goes(kind, it->second.until)) {
        ++it;
        continue;
      }
      taken.push_back(std::move(it->second.spare.fd));
      it = spares.erase(it);
    }
  std::erase_if(by_kind_, [](const auto& each) { return each.second.empty(); });
  return taken;
}

std::optional<Time> Spares::first_until() const {
  std::optional<Time> first;
  for (const auto& [kind, spares] : by_kind_)
    for (const auto& [from, waiting] : spares)
      first = std::min(first.value_or(waiting.until), waiting.until);
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
