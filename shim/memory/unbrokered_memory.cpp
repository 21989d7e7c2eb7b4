#include "shim/memory/unbrokered_memory.h"

#include <algorithm>

namespace amem::shim {
namespace {

const char* host_name(bool of_nccl) { return of_nccl ? "nccl_host" : "host"; }

bool of_host(UnbrokeredMemory::Kind kind) {
  return kind == UnbrokeredMemory::Kind::kHost || kind == UnbrokeredMemory::Kind::kRegistered;
}

const char* name_of(UnbrokeredMemory::Kind kind, bool of_nccl) {
  switch (kind) {
    case UnbrokeredMemory::Kind::kHost:
      return host_name(of_nccl);
    case UnbrokeredMemory::Kind::kRegistered:
      return of_nccl ? "nccl_registered" : "registered";
    case UnbrokeredMemory::Kind::kManaged:
      return "managed";
    case UnbrokeredMemory::Kind::kArray:
      return "array";
    case UnbrokeredMemory::Kind::kDevice:
    case UnbrokeredMemory::Kind::kOpened:
      break;
  }
  return "device";
}

}  // namespace

void UnbrokeredMemory::add(Kind kind, std::uint64_t key, std::uint64_t bytes, int device,
                           CUcontext context, bool of_nccl) {
  std::lock_guard lock(mutex_);
  entries_[{kind, key}] = {bytes, device, context, of_nccl};
}

bool UnbrokeredMemory::remove(Kind kind, std::uint64_t key) {
  std::lock_guard lock(mutex_);
  return entries_.erase({kind, key}) > 0;
}

void UnbrokeredMemory::context_gone(CUcontext context) {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.context == context; });
}

void UnbrokeredMemory::created(std::uint64_t handle, std::uint64_t bytes, int device) {
  std::lock_guard lock(mutex_);
  handles_[handle] = {.bytes = bytes, .device = device};
}

void UnbrokeredMemory::created_on_host(std::uint64_t handle, std::uint64_t bytes, int device,
                                       bool of_nccl) {
  std::lock_guard lock(mutex_);
  handles_[handle] = {.bytes = bytes, .device = device, .host = true, .of_nccl = of_nccl};
}

void UnbrokeredMemory::imported(std::uint64_t handle) {
  std::lock_guard lock(mutex_);
  const auto [it, fresh] = handles_.try_emplace(handle, CountedHandle{.imported = true});
  if (!fresh) ++it->second.refs;
}

void UnbrokeredMemory::referenced(std::uint64_t handle) {
  std::lock_guard lock(mutex_);
  if (const auto it = handles_.find(handle); it != handles_.end()) ++it->second.refs;
}

void UnbrokeredMemory::released(std::uint64_t handle) {
  std::lock_guard lock(mutex_);
  const auto it = handles_.find(handle);
  if (it == handles_.end()) return;
  if (it->second.refs > 0) --it->second.refs;
  erase_if_unused(it);
}

void UnbrokeredMemory::mapped(std::uint64_t handle, std::uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto it = handles_.find(handle);
  if (it == handles_.end()) return;
  ++it->second.mappings;
  mapped_[address] = handle;
}

void UnbrokeredMemory::unmapped(std::uint64_t address, std::uint64_t size) {
  std::lock_guard lock(mutex_);
  for (auto it = mapped_.lower_bound(address); it != mapped_.end() && it->first < address + size;) {
    const auto handle = handles_.find(it->second);
    it = mapped_.erase(it);
    // The driver may have given the number to another thread's new handle before we heard of it.
    if (handle == handles_.end() || handle->second.mappings == 0) continue;
    --handle->second.mappings;
    erase_if_unused(handle);
  }
}

void UnbrokeredMemory::erase_if_unused(CountedHandles::iterator it) {
  if (it->second.refs == 0 && it->second.mappings == 0) handles_.erase(it);
}

void UnbrokeredMemory::pool_created(CUmemoryPool pool, const Pool& made) {
  std::lock_guard lock(pools_mutex_);
  pools_[pool] = made;
}

std::optional<UnbrokeredMemory::Pool> UnbrokeredMemory::pool_goes(CUmemoryPool pool) {
  std::lock_guard lock(pools_mutex_);
  const auto it = pools_.find(pool);
  if (it == pools_.end()) return std::nullopt;
  const Pool made = it->second;
  pools_.erase(it);
  return made;
}

std::optional<UnbrokeredMemory::Pool> UnbrokeredMemory::pool(CUmemoryPool pool) {
  std::lock_guard lock(pools_mutex_);
  const auto it = pools_.find(pool);
  if (it == pools_.end()) return std::nullopt;
  return it->second;
}

void UnbrokeredMemory::device_reset(int device) {
  std::lock_guard lock(pools_mutex_);
  std::erase_if(pools_, [&](const auto& pool) { return pool.second.device == device; });
}

void UnbrokeredMemory::each_pool(const std::function<void(CUmemoryPool, int)>& visit) {
  std::lock_guard lock(pools_mutex_);
  for (const auto& [pool, made] : pools_) visit(pool, made.device);
}

std::vector<UnbrokeredAmount> UnbrokeredMemory::amounts() {
  std::lock_guard lock(mutex_);
  std::map<std::pair<std::string, int>, UnbrokeredAmount> sums;
  const auto count = [&](const std::string& kind, int device, std::uint64_t bytes, bool host) {
    UnbrokeredAmount& sum = sums[{kind, device}];
    sum.kind = kind;
    sum.device = device;
    sum.bytes += bytes;
    ++sum.count;
    sum.host = host;
  };
  for (const auto& [key, entry] : entries_)
    if (key.first != Kind::kOpened)
      count(name_of(key.first, entry.of_nccl), entry.device, entry.bytes, of_host(key.first));
  for (const auto& [handle, entry] : handles_)
    if (!entry.imported)
      count(entry.host ? host_name(entry.of_nccl) : "vmm", entry.device, entry.bytes, entry.host);
  std::vector<UnbrokeredAmount> amounts;
  for (const auto& [key, sum] : sums) amounts.push_back(sum);
  return amounts;
}

std::size_t UnbrokeredMemory::foreign() {
  std::lock_guard lock(mutex_);
  const auto opened = std::count_if(entries_.begin(), entries_.end(), [](const auto& entry) {
    return entry.first.first == Kind::kOpened;
  });
  const auto imported = std::count_if(handles_.begin(), handles_.end(),
                                      [](const auto& entry) { return entry.second.imported; });
  return static_cast<std::size_t>(opened + imported);
}

}  // namespace amem::shim
