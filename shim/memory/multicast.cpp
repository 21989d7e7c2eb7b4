#include "shim/memory/multicast.h"

namespace amem::shim {
namespace {

template <class Mappings>
auto first_overlapping(Mappings& mappings, CUdeviceptr address, std::size_t size) {
  auto it = mappings.begin();
  while (it != mappings.end() && (it->first + it->second <= address || it->first >= address + size))
    ++it;
  return it;
}

}  // namespace

void Multicast::track(CUmemGenericAllocationHandle object) {
  any_.store(true, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  objects_.try_emplace(object, Object{1, {}, {}});
}

bool Multicast::tracked(CUmemGenericAllocationHandle object) {
  if (!any_.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(mutex_);
  return objects_.count(object) != 0;
}

bool Multicast::mapped(CUdeviceptr address, std::size_t size) {
  if (!any_.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(mutex_);
  for (auto& [handle, object] : objects_)
    if (first_overlapping(object.mappings, address, size) != object.mappings.end()) return true;
  return false;
}

void Multicast::map(CUmemGenericAllocationHandle object, CUdeviceptr address, std::size_t size) {
  if (!any_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  if (const auto it = objects_.find(object); it != objects_.end())
    it->second.mappings[address] = size;
}

void Multicast::retain(CUmemGenericAllocationHandle object, CUdeviceptr address) {
  if (!any_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  for (auto it = objects_.begin(); it != objects_.end(); ++it) {
    auto& mappings = it->second.mappings;
    if (first_overlapping(mappings, address, 1) == mappings.end()) continue;
    // A handle that was released in between may have another number now.
    if (it->first != object && it->second.refs == 0) {
      auto node = objects_.extract(it);
      node.key() = object;
      it = objects_.insert(std::move(node)).position;
    }
    ++it->second.refs;
    return;
  }
}

Multicast::Freed Multicast::forget_unused(Objects::iterator it) {
  if (it->second.refs > 0 || !it->second.mappings.empty()) return {};
  // The driver has ended the object, and with it what was bound.
  Freed freed;
  for (const Binding& b : it->second.bindings) freed.push_back(b.id);
  objects_.erase(it);
  return freed;
}

Multicast::Freed Multicast::release(CUmemGenericAllocationHandle object) {
  std::lock_guard lock(mutex_);
  const auto it = objects_.find(object);
  if (it == objects_.end() || it->second.refs == 0) return {};
  --it->second.refs;
  return forget_unused(it);
}

Multicast::Freed Multicast::unmap(CUdeviceptr address, std::size_t size) {
  std::lock_guard lock(mutex_);
  Freed freed;
  for (auto it = objects_.begin(); it != objects_.end();) {
    const auto here = it++;
    auto& mappings = here->second.mappings;
    bool any = false;
    for (auto m = first_overlapping(mappings, address, size); m != mappings.end();
         m = first_overlapping(mappings, address, size)) {
      mappings.erase(m);
      any = true;
    }
    if (!any) continue;
    const Freed some = forget_unused(here);
    freed.insert(freed.end(), some.begin(), some.end());
  }
  return freed;
}

void Multicast::bind(CUmemGenericAllocationHandle object, const Binding& binding) {
  std::lock_guard lock(mutex_);
  objects_[object].bindings.push_back(binding);
}

Multicast::Freed Multicast::unbind(CUmemGenericAllocationHandle object, int device, std::size_t at,
                                   std::size_t size) {
  std::lock_guard lock(mutex_);
  Freed freed;
  const auto it = objects_.find(object);
  if (it == objects_.end()) return freed;
  std::erase_if(it->second.bindings, [&](const Binding& b) {
    const bool goes = b.within(device, at, size);
    if (goes) freed.push_back(b.id);
    return goes;
  });
  return freed;
}

bool Multicast::paused(CUmemGenericAllocationHandle object, int device, std::size_t at,
                       std::size_t size) {
  std::lock_guard lock(mutex_);
  const auto it = objects_.find(object);
  if (it == objects_.end()) return false;
  bool any = false;
  for (const Binding& b : it->second.bindings) {
    if (!b.within(device, at, size)) continue;
    if (b.bound) return false;
    any = true;
  }
  return any;
}

/// Calls `use` with a handle of the object that is valid now.
template <class Use>
CUresult Multicast::with_handle(Objects::value_type& entry, Use use) {
  auto& [handle, object] = entry;
  if (object.refs > 0) return use(handle);
  if (object.mappings.empty()) return CUDA_ERROR_INVALID_HANDLE;
  CUmemGenericAllocationHandle borrowed = 0;
  CUresult r = driver_.cuMemRetainAllocationHandle_(
      &borrowed, reinterpret_cast<void*>(object.mappings.begin()->first));
  if (r != CUDA_SUCCESS) return r;
  r = use(borrowed);
  driver_.cuMemRelease_(borrowed);
  return r;
}

CUresult Multicast::leave(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  CUresult first_error = CUDA_SUCCESS;
  for (auto& entry : objects_) {
    for (Binding& b : entry.second.bindings) {
      if (b.id != id || !b.bound) continue;
      const CUresult r = with_handle(entry, [&](CUmemGenericAllocationHandle object) {
        return driver_.cuMulticastUnbind_(object, b.device, b.at, b.size);
      });
      b.bound = r != CUDA_SUCCESS;
      if (first_error == CUDA_SUCCESS) first_error = r;
    }
  }
  return first_error;
}

CUresult Multicast::come_back(std::uint64_t id, CUmemGenericAllocationHandle real) {
  std::lock_guard lock(mutex_);
  for (auto& entry : objects_) {
    for (Binding& b : entry.second.bindings) {
      if (b.id != id || b.bound) continue;
      const CUresult r = with_handle(entry, [&](CUmemGenericAllocationHandle object) {
        return driver_.cuMulticastBindMem_(object, b.at, real, b.from, b.size, 0);
      });
      if (r != CUDA_SUCCESS) return r;
      b.bound = true;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace amem::shim
