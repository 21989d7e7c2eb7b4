#include "daemon/memory/spares.h"

#include <iterator>
#include <utility>

namespace amem {

MemoryKind kind_of(const Allocation& a) {
  return {a.charge.account().get(), a.device, a.size, a.gpu_direct_rdma};
}

void Spares::put(const MemoryKind& kind, SharedFd fd) { by_kind_[kind].push_back(std::move(fd)); }

SharedFd Spares::take(const MemoryKind& kind) {
  const auto it = by_kind_.find(kind);
  if (it == by_kind_.end()) return nullptr;
  SharedFd fd = std::move(it->second.back());
  it->second.pop_back();
  if (it->second.empty()) by_kind_.erase(it);
  return fd;
}

std::map<MemoryKind, std::vector<SharedFd>> Spares::take_but(const KindCounts& these) {
  std::map<MemoryKind, std::vector<SharedFd>> rest;
  for (auto& [kind, fds] : by_kind_) {
    const auto stay = these.find(kind);
    const std::size_t count = stay != these.end() ? stay->second : 0;
    if (fds.size() <= count) continue;
    const auto first = fds.begin() + static_cast<std::ptrdiff_t>(count);
    rest[kind].assign(std::move_iterator(first), std::move_iterator(fds.end()));
    fds.erase(first, fds.end());
  }
  std::erase_if(by_kind_, [](const auto& each) { return each.second.empty(); });
  return rest;
}

std::size_t Spares::count(const MemoryKind& kind) const {
  const auto it = by_kind_.find(kind);
  return it != by_kind_.end() ? it->second.size() : 0;
}

std::uint64_t Spares::bytes(const DeviceUuid& device) const {
  std::uint64_t bytes = 0;
  for (const auto& [kind, fds] : by_kind_)
    if (kind.device == device) bytes += kind.size * fds.size();
  return bytes;
}

}  // namespace amem
