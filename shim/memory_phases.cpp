// Memory's part in the phases: what leaves with a pause and comes back with a resume.
#include <algorithm>
#include <utility>

#include "shim/log.h"
#include "shim/memory.h"

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

}  // namespace

Result<Memory::Site> Memory::site(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  Allocation* a = table_.find(id);
  if (a == nullptr)
    return Status(Code::kNotFound, "this rank holds no allocation " + std::to_string(id));
  if (!a->resident) return Status(Code::kFailedPrecondition, describe(*a) + " is not mapped");
  const auto reachable_from = [&](auto device_fits) -> std::optional<Site> {
    for (Address address : a->mapped_at)
      for (const Access& access : table_.mapping(address).access)
        if (access.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            access.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE && device_fits(access.id))
          return Site{address, access.id};
    return std::nullopt;
  };
  if (auto found = reachable_from([&](int device) { return device == a->device; })) return *found;

  // Access may have been given to devices on which this process has no context: to copy there
  // would make one, some hundred MiB for good.
  const std::vector<int> active = devices_.active();
  if (active.empty()) return Status(Code::kFailedPrecondition, "no device has a context");
  const auto is_active = [&](int device) {
    return std::find(active.begin(), active.end(), device) != active.end();
  };
  if (auto found = reachable_from(is_active)) return *found;

  // Mapped nowhere that a copy could use: give it an address for the length of this phase.
  const bool own = is_active(a->device);
  const int device = own ? a->device : active.front();
  if (CUresult r = ensure_real(*a); r != CUDA_SUCCESS)
    return driver_.error(r, "the handle of " + describe(*a));
  CUdeviceptr address = 0;
  if (CUresult r = driver_.cuMemAddressReserve_(&address, a->size, 0, 0, 0); r != CUDA_SUCCESS)
    return driver_.error(r, "an address for " + describe(*a));
  if (CUresult r = driver_.cuMemMap_(address, a->size, 0, a->real, 0); r != CUDA_SUCCESS) {
    driver_.cuMemAddressFree_(address, a->size);
    return driver_.error(r, "mapping " + describe(*a) + " for its copy");
  }
  scratch_.push_back({address, a->size});
  const CUmemAccessDesc desc =
      desc_of({CU_MEM_LOCATION_TYPE_DEVICE, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  if (CUresult r = driver_.cuMemSetAccess_(address, a->size, &desc, 1); r != CUDA_SUCCESS)
    return driver_.error(r, "access to " + describe(*a) + " for its copy");
  return Site{address, device};
}

std::string Memory::name(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  const Allocation* a = table_.find(id);
  if (a == nullptr) return "allocation " + std::to_string(id);
  return describe(*a) + ", tag '" + a->tag + "'";
}

void Memory::drop_scratch() {
  for (const Scratch& s : scratch_) {
    driver_.cuMemUnmap_(s.address, s.size);
    driver_.cuMemAddressFree_(s.address, s.size);
  }
  scratch_.clear();
}

Status Memory::leave(const std::set<std::string>& tags, std::uint64_t& bytes) {
  std::lock_guard lock(mutex_);
  return take_away([&](const Allocation& a) { return tags.empty() || tags.contains(a.tag); },
                   bytes);
}

Status Memory::leave(const std::set<std::uint64_t>& ids, std::uint64_t& bytes) {
  std::lock_guard lock(mutex_);
  return take_away([&](const Allocation& a) { return ids.contains(a.id); }, bytes);
}

Status Memory::undo(std::uint64_t& bytes) {
  std::lock_guard lock(mutex_);
  const Status status = take_away([](const Allocation& a) { return a.arriving; }, bytes);
  forget_arrivals();
  return status;
}

/// REQUIRES: the lock is held.
Status Memory::take_away(const std::function<bool(const Allocation&)>& chosen,
                         std::uint64_t& bytes) {
  Status first_error;
  auto failed = [&](CUresult r, const std::string& what) {
    if (first_error.ok()) first_error = driver_.error(r, what);
  };
  returned_.clear();
  returned_bytes_ = 0;

  auto goes = [&](const Allocation& a) { return a.resident && !a.pinned && chosen(a); };
  for (const auto& [id, a] : table_.allocations()) {
    if (a.bindings == 0 || !goes(a)) continue;
    if (CUresult r = multicast_.leave(id); r != CUDA_SUCCESS)
      failed(r, "unbinding " + describe(a) + " from its multicast object");
  }
  std::vector<Mapping*> mapped;
  for (auto& [address, m] : table_.mappings())
    if (goes(*table_.find(m.id))) mapped.push_back(&m);
  for (const Table::Run& run : Table::runs(mapped, false)) {
    const Timed timed(timings_.unmap);
    if (driver_.cuMemUnmap_(run.address, run.size) == CUDA_SUCCESS) continue;
    // Neighbours may come from different reservations, which a driver may refuse to unmap as one.
    for (const Mapping* m : table_.overlapping(run.address, run.size)) {
      if (!goes(*table_.find(m->id))) continue;
      if (CUresult r = driver_.cuMemUnmap_(m->address, m->size); r != CUDA_SUCCESS)
        failed(r, "unmapping " + describe(*table_.find(m->id)));
    }
  }
  bytes = 0;
  for (auto& [id, a] : table_.allocations()) {
    if (!goes(a)) continue;
    const Timed timed(timings_.release);
    ++timings_.handles;
    drop_real(a);
    a.resident = false;
    bytes += a.size;
  }
  return first_error;
}

Status Memory::come_back(std::uint64_t id, const Fd& fd) {
  std::lock_guard lock(mutex_);
  Allocation* a = table_.find(id);
  // Of a group that runs while some of its memory comes back, the program may have freed it.
  if (a == nullptr || a->resident) return {};  // resident: pinned, it never left
  CUmemGenericAllocationHandle real = 0;
  {
    const Timed timed(timings_.import);
    ++timings_.handles;
    if (CUresult r = import_descriptor(&real, fd); r != CUDA_SUCCESS)
      return driver_.error(r, "importing " + describe(*a));
  }
  a->real = real;
  for (std::size_t i = 0; i < a->mapped_at.size(); ++i) {
    const Timed timed(timings_.map);
    if (CUresult r = driver_.cuMemMap_(a->mapped_at[i], a->size, 0, real, 0); r != CUDA_SUCCESS) {
      for (std::size_t k = 0; k < i; ++k) driver_.cuMemUnmap_(a->mapped_at[k], a->size);
      drop_real(*a);
      return driver_.error(r, "mapping " + describe(*a));
    }
  }
  if (a->bindings > 0) {
    if (CUresult r = multicast_.come_back(id, real); r != CUDA_SUCCESS) {
      multicast_.leave(id);
      for (Address address : a->mapped_at) driver_.cuMemUnmap_(address, a->size);
      drop_real(*a);
      return driver_.error(r, "binding " + describe(*a) + " to its multicast object again");
    }
  }
  for (Address address : a->mapped_at) returned_.push_back(&table_.mapping(address));
  a->resident = true;
  a->arriving = true;
  returned_bytes_ += a->size;
  // With a mapping and no handle in the program's hands, the mapping alone keeps the memory.
  if (!Table::needs_real(*a)) {
    const Timed timed(timings_.release);
    drop_real(*a);
  }
  return {};
}

Status Memory::finish_return(std::uint64_t& bytes) {
  std::lock_guard lock(mutex_);
  std::vector<Mapping*> mapped;
  mapped.swap(returned_);
  bytes = std::exchange(returned_bytes_, 0);
  std::sort(mapped.begin(), mapped.end(),
            [](const Mapping* a, const Mapping* b) { return a->address < b->address; });
  for (const Table::Run& run : Table::runs(mapped, true)) {
    if (run.access.empty()) continue;
    const Timed timed(timings_.access);
    const std::vector<CUmemAccessDesc> descs = descs_of(run.access);
    if (driver_.cuMemSetAccess_(run.address, run.size, descs.data(), descs.size()) == CUDA_SUCCESS)
      continue;
    for (const Mapping* m : table_.overlapping(run.address, run.size)) {
      if (CUresult r = driver_.cuMemSetAccess_(m->address, m->size, descs.data(), descs.size());
          r != CUDA_SUCCESS)
        return driver_.error(r, "access to " + describe(*table_.find(m->id)));
    }
  }
  for (const Mapping* m : mapped) restore_sync_memops(*m);
  return {};
}

/// REQUIRES: the lock is held.
void Memory::restore_sync_memops(const Mapping& mapping) {
  if (mapping.sync_memops.empty()) return;
  const std::vector<int> active = devices_.active();
  const int own = table_.find(mapping.id)->device;
  const bool own_active = std::find(active.begin(), active.end(), own) != active.end();
  if (!own_active && active.empty()) return;
  const Devices::Use use(devices_, own_active ? own : active.front());
  const unsigned on = 1;
  for (Address address : mapping.sync_memops)
    if (CUresult r = driver_.cuPointerSetAttribute_(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
        r != CUDA_SUCCESS)
      log_warn("SYNC_MEMOPS of " + describe(*table_.find(mapping.id)) +
               " was lost over the pause: " + driver_.name(r));
}

void Memory::arrived() {
  std::lock_guard lock(mutex_);
  forget_arrivals();
}

void Memory::forget_arrivals() {
  for (auto& [id, a] : table_.allocations()) a.arriving = false;
  arrivals_.notify_all();
}

bool Memory::holds(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  return table_.find(id) != nullptr;
}

std::uint64_t Memory::bytes_away() {
  std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [id, a] : table_.allocations())
    if (!a.resident) bytes += a.size;
  return bytes;
}

}  // namespace amem::shim
