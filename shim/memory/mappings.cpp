#include "shim/memory/mappings.h"

#include <algorithm>

#include "shim/base/log.h"

namespace amem::shim {

namespace {

unsigned long long handle_types_of(const BrokeredAllocation& a) {
  return a.imported ? 0 : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

}  // namespace

CUmemAccessDesc device_access(int device, CUmemAccess_flags flags) {
  CUmemAccessDesc desc{};
  desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  desc.location.id = device;
  desc.flags = flags;
  return desc;
}

CUresult Mappings::map(CUdeviceptr address, std::size_t size, std::size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags) {
  std::lock_guard lock(brokered_.mutex);
  BrokeredAllocation* a = brokered_.table.of_handle(handle);
  if (a == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!a->mapped()) {
    log_error("mapping " + describe(*a) + ": it is paused with its tag '" + a->tag +
              "'. Resume this tag first");
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  if (CUresult r = brokered_.ensure_real(*a); r != CUDA_SUCCESS) return r;
  if (CUresult r = driver_.cuMemMap_(address, size, offset, a->real, flags); r != CUDA_SUCCESS)
    return r;
  // The driver maps whole handles only (it refused anything else just now), so this is the whole
  // allocation.
  brokered_.table.add_mapping(a->id, address);
  return CUDA_SUCCESS;
}

CUresult Mappings::map(CUdeviceptr address,
                       const std::vector<CUmemGenericAllocationHandle>& handles) {
  CUdeviceptr end = address;
  for (const CUmemGenericAllocationHandle handle : handles) {
    const std::size_t size = size_of(handle);
    if (CUresult r = map(end, size, 0, handle, 0); r != CUDA_SUCCESS) {
      if (end > address) unmap(address, end - address);
      return r;
    }
    end += size;
  }
  return CUDA_SUCCESS;
}

/// Zero: it is not brokered.
std::size_t Mappings::size_of(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(brokered_.mutex);
  const BrokeredAllocation* a = brokered_.table.of_handle(handle);
  return a != nullptr ? a->size : 0;
}

std::optional<CUresult> Mappings::unmap(CUdeviceptr address, std::size_t size) {
  std::unique_lock lock(brokered_.mutex);
  const std::optional<std::vector<Mapping*>> touched =
      brokered_.await_arrivals(lock, address, size);
  if (!touched) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (touched->empty()) return std::nullopt;
  // What is paused is mapped nowhere, unless it is stale: the driver knows only of the rest.
  const auto absent = [&](const Mapping& m) {
    return !brokered_.table.find(m.id)->mapped() && !m.stale;
  };
  for (const Mapping* m : *touched)
    if (absent(*m) && (m->address < address || m->address + m->size > address + size))
      return CUDA_ERROR_INVALID_VALUE;  // a part of a mapping, which the driver refuses too
  for (const AddressRange& part : AllocationTable::without(address, size, *touched, absent))
    if (CUresult r = driver_.cuMemUnmap_(part.address, part.size); r != CUDA_SUCCESS) return r;
  for (const Mapping* m : *touched) {
    BrokeredAllocation& a = *brokered_.table.find(m->id);
    brokered_.table.remove_mapping(m->address);
    brokered_.drop_unneeded(a);
  }
  return CUDA_SUCCESS;
}

std::optional<CUresult> Mappings::set_access(CUdeviceptr address, std::size_t size,
                                             const CUmemAccessDesc* desc, std::size_t count) {
  std::unique_lock lock(brokered_.mutex);
  const std::optional<std::vector<Mapping*>> touched =
      brokered_.await_arrivals(lock, address, size);
  if (!touched) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (touched->empty()) return std::nullopt;
  const auto absent = [&](const Mapping& m) { return !brokered_.table.find(m.id)->mapped(); };
  for (const AddressRange& part : AllocationTable::without(address, size, *touched, absent))
    if (CUresult r = driver_.cuMemSetAccess_(part.address, part.size, desc, count);
        r != CUDA_SUCCESS)
      return r;
  for (Mapping* m : *touched)
    for (std::size_t i = 0; i < count; ++i)
      AllocationTable::grant(*m, {static_cast<int>(desc[i].location.type), desc[i].location.id,
                                  static_cast<int>(desc[i].flags)});
  return CUDA_SUCCESS;
}

std::optional<unsigned long long> Mappings::access(CUdeviceptr address,
                                                   const CUmemLocation& location) {
  std::lock_guard lock(brokered_.mutex);
  const Mapping* m = brokered_.table.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  for (const Access& a : m->access)
    if (a.type == static_cast<int>(location.type) && a.id == location.id)
      return static_cast<unsigned long long>(a.flags);
  return CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

std::optional<CUresult> Mappings::address_range(CUdeviceptr* base, std::size_t* size,
                                                CUdeviceptr address) {
  std::lock_guard lock(brokered_.mutex);
  const Mapping* m = brokered_.table.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  if (base != nullptr) *base = m->address;
  if (size != nullptr) *size = m->size;
  return CUDA_SUCCESS;
}

bool Mappings::brokered(CUdeviceptr address, std::size_t size) {
  std::lock_guard lock(brokered_.mutex);
  return !brokered_.table.overlapping(address, size).empty();
}

std::optional<Mappings::Absent> Mappings::absent(CUdeviceptr address) {
  std::lock_guard lock(brokered_.mutex);
  const Mapping* m = brokered_.table.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  const BrokeredAllocation& a = *brokered_.table.find(m->id);
  if (a.mapped()) return std::nullopt;
  return Absent{
      m->address,        m->size, a.device, a.gpu_direct_rdma, m->sync_memops.contains(address),
      handle_types_of(a)};
}

std::optional<unsigned long long> Mappings::handle_types(CUdeviceptr address) {
  std::lock_guard lock(brokered_.mutex);
  const Mapping* m = brokered_.table.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  return handle_types_of(*brokered_.table.find(m->id));
}

Result<std::vector<Mappings::AbsentRange>> Mappings::paused(CUdeviceptr address,
                                                            std::uint64_t size) {
  std::lock_guard lock(brokered_.mutex);
  std::vector<AbsentRange> ranges;
  const CUdeviceptr end = address + size;
  while (address < end) {
    const Mapping* m = brokered_.table.mapping_at(address);
    if (m == nullptr)
      return Status(Code::kInvalidArgument, "this memory is not brokered, so no pause saves it");
    if (brokered_.table.find(m->id)->mapped())
      return Status(Code::kNotFound, "this memory is on its device, so no bytes of it are saved");
    const std::uint64_t offset = address - m->address;
    const std::uint64_t here = std::min<std::uint64_t>(end - address, m->size - offset);
    ranges.push_back({m->id, offset, here});
    address += here;
  }
  return ranges;
}

std::optional<std::uint64_t> Mappings::id_at(CUdeviceptr address) {
  std::lock_guard lock(brokered_.mutex);
  const Mapping* m = brokered_.table.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  return m->id;
}

bool Mappings::arriving(CUdeviceptr address) {
  std::lock_guard lock(brokered_.mutex);
  const Mapping* m = brokered_.table.mapping_at(address);
  return m != nullptr && brokered_.table.find(m->id)->arriving();
}

bool Mappings::resident(CUdeviceptr address) {
  std::lock_guard lock(brokered_.mutex);
  const Mapping* m = brokered_.table.mapping_at(address);
  if (m == nullptr) return false;
  return brokered_.table.find(m->id)->usable();
}

bool Mappings::reusable(CUdeviceptr address, std::size_t size) {
  std::lock_guard lock(brokered_.mutex);
  const std::vector<Mapping*> mapped = brokered_.table.overlapping(address, size);
  return !mapped.empty() && std::all_of(mapped.begin(), mapped.end(), [this](const Mapping* m) {
    const BrokeredAllocation& a = *brokered_.table.find(m->id);
    return a.usable() && !a.shared && a.pins.empty() && a.bindings == 0 &&
           a.mapped_at.size() == 1 && m->sync_memops.empty();
  });
}

std::vector<CUdeviceptr> Mappings::starts(CUdeviceptr address, std::size_t size) {
  std::lock_guard lock(brokered_.mutex);
  std::vector<CUdeviceptr> all;
  for (const Mapping* m : brokered_.table.overlapping(address, size)) all.push_back(m->address);
  return all;
}

bool Mappings::arrived(CUdeviceptr address, std::size_t size) {
  std::unique_lock lock(brokered_.mutex);
  return brokered_.await_arrivals(lock, address, size).has_value();
}

void Mappings::set_sync_memops(CUdeviceptr address, bool on) {
  std::lock_guard lock(brokered_.mutex);
  Mapping* m = brokered_.table.mapping_at(address);
  if (m == nullptr) return;
  if (on)
    m->sync_memops.insert(address);
  else
    m->sync_memops.erase(address);
}

CUresult Mappings::add_bindings(CUmemGenericAllocationHandle handle, Bound& bound) {
  std::lock_guard lock(brokered_.mutex);
  BrokeredAllocation* a = brokered_.table.of_handle(handle);
  if (a == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = brokered_.ensure_real(*a); r != CUDA_SUCCESS) return r;
  ++a->bindings;
  bound = {a->id, a->real, a->device, 0, 0, a->size, a->own};
  return CUDA_SUCCESS;
}

std::vector<Mappings::Bound> Mappings::add_bindings(CUdeviceptr address, std::size_t size) {
  std::lock_guard lock(brokered_.mutex);
  std::vector<Bound> pieces;
  for (const Mapping* m : brokered_.table.overlapping(address, size)) {
    BrokeredAllocation& a = *brokered_.table.find(m->id);
    ++a.bindings;
    const CUdeviceptr begin = std::max<CUdeviceptr>(address, m->address);
    const CUdeviceptr end = std::min<CUdeviceptr>(address + size, m->address + m->size);
    // A handle that cannot be had now is missed only if the memory is unmapped while it is bound.
    brokered_.ensure_real(a);
    pieces.push_back({a.id, a.real, a.device, begin, begin - m->address, end - begin, a.own});
  }
  return pieces;
}

void Mappings::release(const Multicast::Freed& ids) {
  std::lock_guard lock(brokered_.mutex);
  for (const std::uint64_t id : ids) {
    BrokeredAllocation* a = brokered_.table.find(id);
    if (a == nullptr) continue;
    --a->bindings;
    brokered_.drop_unneeded(*a);
  }
}

}  // namespace amem::shim
