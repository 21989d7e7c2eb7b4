#include "shim/memory/residency.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "shim/base/log.h"
#include "shim/gate/wait_log.h"
#include "shim/memory/handles.h"
#include "shim/memory/paused_memory.h"

namespace amem::shim {
namespace {

CUmemAccessDesc desc_of(const Access& a) {
  CUmemAccessDesc d{};
  d.location.type = static_cast<CUmemLocationType>(a.type);
  d.location.id = a.id;
  d.flags = static_cast<CUmemAccess_flags>(a.flags);
  return d;
}

std::vector<CUmemAccessDesc> descs_of(const std::vector<Access>& access) {
  std::vector<CUmemAccessDesc> descs;
  for (const Access& a : access) descs.push_back(desc_of(a));
  return descs;
}

constexpr const char* kNotOwn =
    ". amemd has made this memory, but the driver binds only memory that this process has made "
    "itself";

bool at_lower_address(const Mapping* a, const Mapping* b) { return a->address < b->address; }

}  // namespace

Result<Residency::Site> Residency::site(std::uint64_t id) {
  std::lock_guard lock(brokered_.mutex);
  BrokeredAllocation* a = brokered_.table.find(id);
  if (a == nullptr)
    return Status(Code::kNotFound, "this rank does not hold allocation " + std::to_string(id));
  if (!a->mapped()) return Status(Code::kFailedPrecondition, describe(*a) + " is not mapped");
  const auto reachable_from = [&](auto device_fits) -> std::optional<Site> {
    for (Address address : a->mapped_at)
      for (const Access& access : brokered_.table.mapping(address).access)
        if (access.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE && device_fits(access.id))
          return Site{address, access.id};
    return std::nullopt;
  };
  const auto is_own = [&](int device) { return device == a->device; };
  const std::optional<Site> own = reachable_from(is_own);
  if (own && devices_.active(a->device)) return *own;

  // Access may have been given to devices on which this process has no context: to copy there would
  // make one, a few hundred MiB for good.
  const std::vector<int> active = devices_.active();
  const auto is_active = [&](int device) {
    return std::find(active.begin(), active.end(), device) != active.end();
  };
  if (auto found = reachable_from(is_active)) return *found;
  if (active.empty())
    return own ? Result<Site>(*own) : Status(Code::kFailedPrecondition, "no device has a context");
  Result<Site> borrowed = borrow(*a, is_active(a->device) ? a->device : active.front());
  // Devices that do not reach each other: rather a context than no pause.
  return !borrowed.ok() && own ? Result<Site>(*own) : std::move(borrowed);
}

/// Maps memory for the length of this phase, if a copy could use no other mapping of it. Returns
/// the address. REQUIRES: the lock is held.
Result<Residency::Site> Residency::borrow(BrokeredAllocation& a, int device) {
  if (CUresult r = brokered_.ensure_real(a); r != CUDA_SUCCESS)
    return driver_.error(r, "the handle of " + describe(a));
  CUdeviceptr address = 0;
  if (CUresult r = driver_.cuMemAddressReserve_(&address, a.size, 0, 0, 0); r != CUDA_SUCCESS)
    return driver_.error(r, "an address for " + describe(a));
  if (CUresult r = driver_.cuMemMap_(address, a.size, 0, a.real, 0); r != CUDA_SUCCESS) {
    driver_.cuMemAddressFree_(address, a.size);
    return driver_.error(r, "mapping " + describe(a) + " for its copy");
  }
  temporary_mappings_.push_back({address, a.size});
  const CUmemAccessDesc desc =
      desc_of({CU_MEM_LOCATION_TYPE_DEVICE, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  if (CUresult r = driver_.cuMemSetAccess_(address, a.size, &desc, 1); r != CUDA_SUCCESS)
    return driver_.error(r, "access to " + describe(a) + " for its copy");
  return Site{address, device};
}

void Residency::drop_temporary_mappings() {
  stale_mappings_.insert(stale_mappings_.end(), temporary_mappings_.begin(),
                         temporary_mappings_.end());
  temporary_mappings_.clear();
  drop_stale_mappings();
}

void Residency::drop_stale_mappings() {
  std::erase_if(stale_mappings_, [this](const AddressRange& s) {
    if (driver_.cuMemUnmap_(s.address, s.size) != CUDA_SUCCESS) return false;
    driver_.cuMemAddressFree_(s.address, s.size);
    return true;
  });
}

/// REQUIRES: the lock is held.
template <class Chosen>
std::vector<BrokeredAllocation*> Residency::all_that(const Chosen& chosen) {
  std::vector<BrokeredAllocation*> all;
  for (auto& [id, a] : brokered_.table.allocations())
    if (std::invoke(chosen, a)) all.push_back(&a);
  return all;
}

Status Residency::leave(const std::set<std::string>& tags, bool except, std::uint64_t& bytes) {
  std::lock_guard lock(brokered_.mutex);
  return take(all_that([&](const BrokeredAllocation& a) {
                return tags.empty() || (!a.guest && tags.contains(a.tag) != except);
              }),
              bytes);
}

Status Residency::leave(const std::set<std::uint64_t>& ids, std::uint64_t& bytes) {
  std::lock_guard lock(brokered_.mutex);
  std::vector<BrokeredAllocation*> chosen;
  for (const std::uint64_t id : ids)
    if (BrokeredAllocation* a = brokered_.table.find(id); a != nullptr) chosen.push_back(a);
  return take(std::move(chosen), bytes);
}

Status Residency::undo(std::uint64_t& bytes) {
  drop_made();
  std::lock_guard lock(brokered_.mutex);
  const Status status = take(all_that(&BrokeredAllocation::arriving), bytes);
  brokered_.forget_arrivals();
  PausedMemory::update(brokered_);
  return status;
}

/// Takes what is there of these and not pinned. REQUIRES: the lock is held.
Status Residency::take(std::vector<BrokeredAllocation*> going, std::uint64_t& bytes) {
  returned_.clear();
  returned_bytes_ = 0;

  std::erase_if(going,
                [](const BrokeredAllocation* a) { return !a->on_device() || !a->pins.empty(); });
  std::vector<Mapping*> mapped;
  const bool by_itself = wait_log().paused_by_itself();
  for (BrokeredAllocation* a : going) {
    const bool unmapped = !a->mapped();
    a->by_itself = by_itself;
    brokered_.table.move(*a, Where::kAway);
    if (unmapped) continue;
    // What is refused here and below is left to drop_leftovers().
    if (a->bindings > 0) unbind(*a);
    for (const Address address : a->mapped_at) mapped.push_back(&brokered_.table.mapping(address));
  }
  unmap(std::move(mapped));
  for (BrokeredAllocation* a : going) {
    const Timed timed(timings_.release);
    ++timings_.handles;
    brokered_.drop_real(*a);
  }
  PausedMemory::update(brokered_);
  const Status status = drop_all_leftovers();
  bytes = 0;
  for (const BrokeredAllocation* a : going)
    if (!leftovers_.contains(a->id)) bytes += a->size;
  return status;
}

/// REQUIRES: the lock is held.
void Residency::unmap(std::vector<Mapping*> mapped) {
  std::sort(mapped.begin(), mapped.end(), at_lower_address);
  for (const AllocationTable::Run& run : AllocationTable::runs(mapped, false)) {
    const Timed timed(timings_.unmap);
    // Neighbours may come from different reservations, which a driver may refuse to unmap as one.
    if (driver_.cuMemUnmap_(run.address, run.size) == CUDA_SUCCESS) continue;
    for (Mapping* m : brokered_.table.overlapping(run.address, run.size)) {
      m->stale = true;
      leftovers_.insert(m->id);
    }
  }
}

void Residency::unmap_ahead(std::span<const std::uint64_t> ids) {
  std::lock_guard lock(brokered_.mutex);
  std::vector<BrokeredAllocation*> going;
  std::vector<Mapping*> mapped;
  for (const std::uint64_t id : ids) {
    BrokeredAllocation* a = brokered_.table.find(id);
    if (a == nullptr || !a->usable() || a->mapped_at.empty() || a->bindings > 0 ||
        !a->pins.empty() || brokered_.ensure_real(*a) != CUDA_SUCCESS)
      continue;
    brokered_.table.move(*a, Where::kUnmapped);
    unmapped_.push_back(id);
    going.push_back(a);
    for (const Address address : a->mapped_at) mapped.push_back(&brokered_.table.mapping(address));
  }
  unmap(std::move(mapped));
  // Neighbours may do one by one what they could not do together. The rest is left to leave().
  for (BrokeredAllocation* a : going)
    if (const Status s = drop_leftovers_of(*a); !s.ok()) log_debug(s.text());
}

Status Residency::map_again() {
  std::lock_guard lock(brokered_.mutex);
  Status first_error;
  std::vector<Mapping*> mapped;
  bool any = false;
  std::erase_if(unmapped_, [&](std::uint64_t id) {
    BrokeredAllocation* a = brokered_.table.find(id);
    if (a == nullptr || a->where() != Where::kUnmapped) return true;  // freed, or it has left
    any = true;
    std::vector<Mapping*> of_this;
    CUresult r = CUDA_SUCCESS;
    for (const Address address : a->mapped_at) {
      Mapping& m = brokered_.table.mapping(address);
      if (std::exchange(m.stale, false)) continue;  // the driver had refused to unmap this one
      const Timed timed(timings_.map);
      r = driver_.cuMemMap_(address, a->size, 0, a->real, 0);
      if (r != CUDA_SUCCESS) break;
      of_this.push_back(&m);
    }
    if (r != CUDA_SUCCESS) {
      if (first_error.ok()) first_error = driver_.error(r, "mapping " + describe(*a) + " again");
      for (Mapping* m : of_this) drop_mapping(*m);
      return false;
    }
    brokered_.table.move(*a, Where::kHere);
    if (!AllocationTable::needs_real(*a)) brokered_.drop_real(*a);
    mapped.insert(mapped.end(), of_this.begin(), of_this.end());
    return true;
  });
  if (!any) return {};
  const Status granted = grant(std::move(mapped));
  PausedMemory::update(brokered_);
  return first_error.ok() ? granted : first_error;
}

CUresult Residency::drop_mapping(Mapping& mapping) {
  const Timed timed(timings_.unmap);
  const CUresult r = driver_.cuMemUnmap_(mapping.address, mapping.size);
  mapping.stale = r != CUDA_SUCCESS;
  if (mapping.stale) leftovers_.insert(mapping.id);
  return r;
}

CUresult Residency::unbind(const BrokeredAllocation& a) {
  const CUresult r = multicast_.leave(a.id);
  if (r != CUDA_SUCCESS) leftovers_.insert(a.id);
  return r;
}

/// REQUIRES: the lock is held, and the allocation is not mapped.
Status Residency::drop_leftovers_of(BrokeredAllocation& a) {
  Status first_error;
  if (a.bindings > 0)
    if (CUresult r = unbind(a); r != CUDA_SUCCESS)
      first_error = driver_.error(r, "unbinding " + describe(a) + " from its multicast object");
  for (const Address address : a.mapped_at) {
    Mapping& m = brokered_.table.mapping(address);
    if (!m.stale) continue;
    if (CUresult r = drop_mapping(m); r != CUDA_SUCCESS && first_error.ok())
      first_error = driver_.error(r, "unmapping " + describe(a));
  }
  return first_error;
}

/// REQUIRES: the lock is held.
Status Residency::drop_all_leftovers() {
  Status first_error;
  for (const std::uint64_t id : std::exchange(leftovers_, {})) {
    BrokeredAllocation* a = brokered_.table.find(id);
    if (a == nullptr || a->mapped()) continue;
    if (Status s = drop_leftovers_of(*a); first_error.ok()) first_error = s;
  }
  if (Status s = brokered_.release_refused(); first_error.ok()) first_error = s;
  drop_stale_mappings();
  if (!stale_mappings_.empty() && first_error.ok())
    first_error = {Code::kInternal, "the driver does not unmap " +
                                        std::to_string(stale_mappings_.size()) +
                                        " allocations from where they were copied"};
  return first_error;
}

Status Residency::drop_leftovers() {
  std::lock_guard lock(brokered_.mutex);
  return drop_all_leftovers();
}

Result<Fd> Residency::make(std::uint64_t id) {
  std::lock_guard lock(brokered_.mutex);
  BrokeredAllocation* a = brokered_.table.find(id);
  if (a == nullptr) return Fd();
  if (a->on_device())
    return Status(Code::kFailedPrecondition,
                  describe(*a) + " is on its device, so it must not be made again");
  brokered_.drop_made(*a);
  const Timed timed(timings_.import);
  OwnMemory made;
  if (CUresult r = make_own_memory(driver_, a->device, a->gpu_direct_rdma, a->size, made);
      r != CUDA_SUCCESS)
    return driver_.error(r, "making " + describe(*a) + " again");
  a->made = made.handle;
  return std::move(made.fd);
}

void Residency::drop_made() {
  std::lock_guard lock(brokered_.mutex);
  for (auto& [id, a] : brokered_.table.allocations()) brokered_.drop_made(a);
}

Status Residency::come_back(std::uint64_t id, const Fd& fd) {
  return arrive(id, "importing ", [&](BrokeredAllocation& a, CUmemGenericAllocationHandle* real) {
    a.own = a.made != 0;
    *real = std::exchange(a.made, 0);
    return a.own ? CUDA_SUCCESS : brokered_.import_descriptor(real, fd);
  });
}

Status Residency::make_again(std::uint64_t id) {
  return arrive(id, "creating ", [this](BrokeredAllocation& a, CUmemGenericAllocationHandle* real) {
    const CUmemAllocationProp prop = brokered_properties(a.device, a.gpu_direct_rdma);
    return driver_.cuMemCreate_(real, a.size, &prop, 0);
  });
}

Status Residency::arrive(std::uint64_t id, const char* getting, const GetMemory& get) {
  std::lock_guard lock(brokered_.mutex);
  BrokeredAllocation* a = brokered_.table.find(id);
  // The program of a group that runs during a resume may have freed it.
  if (a == nullptr || a->on_device()) return {};  // on its device: pinned, it never left
  if (const Status s = drop_leftovers_of(*a); !s.ok())
    return {
        s.code(),
        s.text() +
            ", where its old memory has been since the pause. Resume again, or end this process"};
  CUmemGenericAllocationHandle real = 0;
  {
    const Timed timed(timings_.import);
    ++timings_.handles;
    if (CUresult r = get(*a, &real); r != CUDA_SUCCESS)
      return driver_.error(r, getting + describe(*a));
  }
  a->real = real;
  for (std::size_t i = 0; i < a->mapped_at.size(); ++i) {
    const Timed timed(timings_.map);
    if (CUresult r = driver_.cuMemMap_(a->mapped_at[i], a->size, 0, real, 0); r != CUDA_SUCCESS) {
      for (std::size_t k = 0; k < i; ++k) drop_mapping(brokered_.table.mapping(a->mapped_at[k]));
      brokered_.drop_real(*a);
      return driver_.error(r, "mapping " + describe(*a));
    }
  }
  if (a->bindings > 0) {
    if (CUresult r = multicast_.come_back(id, real); r != CUDA_SUCCESS) {
      unbind(*a);
      for (Address address : a->mapped_at) drop_mapping(brokered_.table.mapping(address));
      brokered_.drop_real(*a);
      return driver_.error(r, "binding " + describe(*a) + " to its multicast object again" +
                                  (a->own ? "" : kNotOwn));
    }
  }
  for (Address address : a->mapped_at) returned_.push_back(&brokered_.table.mapping(address));
  brokered_.table.move(*a, Where::kArriving);
  returned_bytes_ += a->size;
  // With a mapping and no handle in the program's hands, the mapping alone keeps the memory.
  if (!AllocationTable::needs_real(*a)) {
    const Timed timed(timings_.release);
    brokered_.drop_real(*a);
  }
  return {};
}

Status Residency::finish_return(std::uint64_t& bytes) {
  std::lock_guard lock(brokered_.mutex);
  bytes = std::exchange(returned_bytes_, 0);
  return grant(std::exchange(returned_, {}));
}

/// REQUIRES: the lock is held.
Status Residency::grant(std::vector<Mapping*> mapped) {
  std::sort(mapped.begin(), mapped.end(), at_lower_address);
  for (const AllocationTable::Run& run : AllocationTable::runs(mapped, true)) {
    if (run.access.empty()) continue;
    const Timed timed(timings_.access);
    const std::vector<CUmemAccessDesc> descs = descs_of(run.access);
    if (driver_.cuMemSetAccess_(run.address, run.size, descs.data(), descs.size()) == CUDA_SUCCESS)
      continue;
    for (const Mapping* m : brokered_.table.overlapping(run.address, run.size)) {
      if (CUresult r = driver_.cuMemSetAccess_(m->address, m->size, descs.data(), descs.size());
          r != CUDA_SUCCESS)
        return driver_.error(r, "access to " + describe(*brokered_.table.find(m->id)));
    }
  }
  for (const Mapping* m : mapped) restore_sync_memops(*m);
  return {};
}

/// REQUIRES: the lock is held.
void Residency::restore_sync_memops(const Mapping& mapping) {
  if (mapping.sync_memops.empty()) return;
  const std::vector<int> active = devices_.active();
  const int own = brokered_.table.find(mapping.id)->device;
  const bool own_active = std::find(active.begin(), active.end(), own) != active.end();
  if (!own_active && active.empty()) return;
  const LocalDevices::Use use(devices_, own_active ? own : active.front());
  const unsigned on = 1;
  for (Address address : mapping.sync_memops)
    if (CUresult r = driver_.cuPointerSetAttribute_(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
        r != CUDA_SUCCESS)
      log_warn("SYNC_MEMOPS of " + describe(*brokered_.table.find(mapping.id)) +
               " was lost during the pause: " + driver_.name(r));
}

void Residency::arrived() {
  std::lock_guard lock(brokered_.mutex);
  brokered_.forget_arrivals();
  PausedMemory::update(brokered_);
}

}  // namespace amem::shim
