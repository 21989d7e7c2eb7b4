#include "shim/memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shim/log.h"

namespace amem::shim {
namespace {

constexpr std::chrono::seconds kBrokerDeadline{30};

/// What the program sees when the broker refuses. The broker's reason goes to the log.
CUresult refuse(const Status& status, const std::string& what) {
  log_error(what + ": " + status.text());
  return status.code() == Code::kResourceExhausted ? CUDA_ERROR_OUT_OF_MEMORY
                                                   : CUDA_ERROR_SYSTEM_NOT_READY;
}

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

std::string Memory::describe(const Allocation& a) const {
  return "allocation " + std::to_string(a.id) + " (" + std::to_string(a.size) + " bytes, device " +
         std::to_string(a.device) + ")";
}

/// Turns a descriptor from the broker into a handle of the program.
CUresult Memory::adopt(CUmemGenericAllocationHandle* handle, Allocation allocation, const Fd& fd) {
  std::lock_guard lock(mutex_);
  if (Allocation* known = table_.find(allocation.id); known != nullptr) {
    ++known->refs;
  } else {
    CUmemGenericAllocationHandle real = 0;
    if (CUresult r = driver_.cuMemImportFromShareableHandle_(
            &real, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        r != CUDA_SUCCESS) {
      log_error("importing " + describe(allocation) + " from the broker: " + driver_.name(r));
      tell_free(allocation.id);
      return r;
    }
    allocation.real = real;
    allocation.number = next_number_++;
    table_.add(allocation);
  }
  *handle = Table::handle_of(allocation.id);
  return CUDA_SUCCESS;
}

CUresult Memory::create(CUmemGenericAllocationHandle* handle, std::size_t size,
                        const CUmemAllocationProp& prop, const char* tag) {
  const int device = prop.location.id;
  if (device < 0 || device >= devices_.count()) return CUDA_ERROR_INVALID_DEVICE;
  Message request = amem_v1_SessionMessage_init_zero;
  request.which_body = amem_v1_SessionMessage_create_tag;
  amem_v1_Create& c = request.body.create;
  c.size = size;
  std::memcpy(c.device, devices_.uuid(device).bytes.data(), sizeof c.device);
  c.gpu_direct_rdma = prop.allocFlags.gpuDirectRDMACapable != 0;
  set_text(c.tag, tag);
  Result<Packet> answer = session_.call(request, kBrokerDeadline);
  const std::string what =
      "creating " + std::to_string(size) + " bytes on device " + std::to_string(device);
  if (!answer.ok()) return refuse(answer.status(), what);
  const amem_v1_Reply& reply = answer.value().message.body.reply;
  if (reply.which_result != amem_v1_Reply_created_tag || answer.value().fds.size() != 1)
    return refuse({Code::kInternal, "the broker's answer has no allocation"}, what);

  Allocation a;
  a.id = reply.result.created.id;
  a.size = size;
  a.device = device;
  a.gpu_direct_rdma = c.gpu_direct_rdma;
  std::memcpy(a.token.data(), reply.result.created.token, a.token.size());
  return adopt(handle, a, answer.value().fds.front());
}

CUresult Memory::import_ticket(CUmemGenericAllocationHandle* handle, const Ticket& ticket) {
  Message request = amem_v1_SessionMessage_init_zero;
  request.which_body = amem_v1_SessionMessage_redeem_tag;
  request.body.redeem.id = ticket.id;
  std::memcpy(request.body.redeem.token, ticket.token.data(), ticket.token.size());
  Result<Packet> answer = session_.call(request, kBrokerDeadline);
  const std::string what = "redeeming a ticket for allocation " + std::to_string(ticket.id);
  if (!answer.ok()) return refuse(answer.status(), what);
  const amem_v1_Reply& reply = answer.value().message.body.reply;
  if (reply.which_result != amem_v1_Reply_redeemed_tag || answer.value().fds.size() != 1)
    return refuse({Code::kInternal, "the broker's answer has no allocation"}, what);

  const amem_v1_Redeemed& r = reply.result.redeemed;
  Allocation a;
  a.id = r.id;
  a.size = r.size;
  a.device = devices_.ordinal(make_uuid(r.device));
  a.gpu_direct_rdma = r.gpu_direct_rdma;
  a.imported = true;
  a.token = ticket.token;
  return adopt(handle, a, answer.value().fds.front());
}

CUresult Memory::release(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  Allocation* a = table_.find(Table::id_of(handle));
  if (a == nullptr || a->refs == 0) return CUDA_ERROR_INVALID_VALUE;
  --a->refs;
  settle(*a);
  return CUDA_SUCCESS;
}

/// After a reference or mapping went: lets go of what nothing needs any more.
void Memory::settle(Allocation& a) {
  if (!Table::needs_real(a)) drop_real(a);
  if (!Table::unused(a)) return;
  const std::uint64_t id = a.id;
  table_.forget(id);
  tell_free(id);
}

void Memory::tell_free(std::uint64_t id) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_free_tag;
  message.body.free.id = id;
  session_.post(message);
}

void Memory::drop_real(Allocation& a) {
  if (a.real == 0) return;
  if (CUresult r = driver_.cuMemRelease_(a.real); r != CUDA_SUCCESS)
    log_error("releasing " + describe(a) + ": " + driver_.name(r));
  a.real = 0;
}

/// The driver's handle, fetched again from a mapping when the program had released all of its own.
CUresult Memory::ensure_real(Allocation& a) {
  if (a.real != 0) return CUDA_SUCCESS;
  if (a.mapped_at.empty()) return CUDA_ERROR_INVALID_VALUE;
  CUmemGenericAllocationHandle real = 0;
  const CUresult r =
      driver_.cuMemRetainAllocationHandle_(&real, reinterpret_cast<void*>(a.mapped_at.front()));
  if (r == CUDA_SUCCESS) a.real = real;
  return r;
}

CUresult Memory::export_ticket(int* fd, CUmemGenericAllocationHandle handle) {
  Ticket ticket;
  {
    std::lock_guard lock(mutex_);
    const Allocation* a = table_.find(Table::id_of(handle));
    if (a == nullptr) return CUDA_ERROR_INVALID_VALUE;
    ticket = ticket_for(*a);
  }
  Result<Fd> made = make_ticket(ticket);
  if (!made.ok()) {
    log_error("exporting allocation " + std::to_string(ticket.id) + ": " + made.status().text());
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *fd = made.value().release();
  return CUDA_SUCCESS;
}

CUresult Memory::properties(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  const Allocation* a = table_.find(Table::id_of(handle));
  if (a == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = {};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop->location.id = a->device;
  prop->allocFlags.gpuDirectRDMACapable = a->gpu_direct_rdma ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult Memory::map(CUdeviceptr address, std::size_t size, std::size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags) {
  std::lock_guard lock(mutex_);
  Allocation* a = table_.find(Table::id_of(handle));
  if (a == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = ensure_real(*a); r != CUDA_SUCCESS) return r;
  if (CUresult r = driver_.cuMemMap_(address, size, offset, a->real, flags); r != CUDA_SUCCESS)
    return r;
  // The driver maps whole handles only (it refused anything else just now), so this is the whole
  // allocation.
  table_.add_mapping(a->id, address);
  return CUDA_SUCCESS;
}

std::optional<CUresult> Memory::retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  const Mapping* m = table_.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  ++table_.find(m->id)->refs;
  *handle = Table::handle_of(m->id);
  return CUDA_SUCCESS;
}

Memory::TraceView Memory::trace_view(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  const Allocation* a = table_.find(Table::id_of(handle));
  if (a == nullptr) return {};
  return {a->number, a->imported, a->refs, a->mapped_at.size()};
}

std::optional<Ticket> Memory::ticket_at(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  const Mapping* m = table_.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  return ticket_for(*table_.find(m->id));
}

std::optional<Memory::Known> Memory::known(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  const Allocation* a = table_.find(id);
  if (a == nullptr) return std::nullopt;
  return Known{a->size, a->device, a->imported};
}

bool Memory::brokered(CUdeviceptr address, std::size_t size) {
  std::lock_guard lock(mutex_);
  return !table_.overlapping(address, size).empty();
}

std::optional<CUresult> Memory::unmap(CUdeviceptr address, std::size_t size) {
  std::lock_guard lock(mutex_);
  const std::vector<Mapping*> touched = table_.overlapping(address, size);
  if (touched.empty()) return std::nullopt;
  if (CUresult r = driver_.cuMemUnmap_(address, size); r != CUDA_SUCCESS) return r;
  for (const Mapping* m : touched) {
    Allocation& a = *table_.find(m->id);
    table_.remove_mapping(m->address);
    settle(a);
  }
  return CUDA_SUCCESS;
}

std::optional<CUresult> Memory::set_access(CUdeviceptr address, std::size_t size,
                                           const CUmemAccessDesc* desc, std::size_t count) {
  std::lock_guard lock(mutex_);
  const std::vector<Mapping*> touched = table_.overlapping(address, size);
  if (touched.empty()) return std::nullopt;
  if (CUresult r = driver_.cuMemSetAccess_(address, size, desc, count); r != CUDA_SUCCESS) return r;
  for (Mapping* m : touched)
    for (std::size_t i = 0; i < count; ++i)
      Table::grant(*m, {static_cast<int>(desc[i].location.type), desc[i].location.id,
                        static_cast<int>(desc[i].flags)});
  return CUDA_SUCCESS;
}

std::optional<CUresult> Memory::address_range(CUdeviceptr* base, std::size_t* size,
                                              CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  const Mapping* m = table_.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  if (base != nullptr) *base = m->address;
  if (size != nullptr) *size = m->size;
  return CUDA_SUCCESS;
}

void Memory::pin(CUdeviceptr address, std::size_t size) {
  std::lock_guard lock(mutex_);
  for (const Mapping* m : table_.overlapping(address, size)) {
    Allocation& a = *table_.find(m->id);
    if (a.pinned) continue;
    a.pinned = true;
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_pin_tag;
    message.body.pin.id = a.id;
    session_.post(message);
  }
}

CUresult Memory::hold(CUmemGenericAllocationHandle handle, Held& held) {
  std::lock_guard lock(mutex_);
  Allocation* a = table_.find(Table::id_of(handle));
  if (a == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult r = ensure_real(*a); r != CUDA_SUCCESS) return r;
  ++a->bindings;
  held = {a->id, a->real, a->device, 0, 0, a->size};
  return CUDA_SUCCESS;
}

std::vector<Memory::Held> Memory::hold(CUdeviceptr address, std::size_t size) {
  std::lock_guard lock(mutex_);
  std::vector<Held> pieces;
  for (const Mapping* m : table_.overlapping(address, size)) {
    Allocation& a = *table_.find(m->id);
    ++a.bindings;
    const CUdeviceptr begin = std::max<CUdeviceptr>(address, m->address);
    const CUdeviceptr end = std::min<CUdeviceptr>(address + size, m->address + m->size);
    // A handle that cannot be had now is missed only if the memory is unmapped while it is bound.
    ensure_real(a);
    pieces.push_back({a.id, a.real, a.device, begin, begin - m->address, end - begin});
  }
  return pieces;
}

void Memory::let_go(const Multicast::Freed& ids) {
  std::lock_guard lock(mutex_);
  for (const std::uint64_t id : ids) {
    Allocation* a = table_.find(id);
    if (a == nullptr) continue;
    --a->bindings;
    settle(*a);
  }
}

Memory::Totals Memory::totals() {
  std::lock_guard lock(mutex_);
  Totals t;
  for (const auto& [id, a] : table_.allocations()) {
    (a.imported ? t.imported_bytes : t.owned_bytes) += a.size;
    ++t.allocations;
  }
  t.mappings = table_.mappings().size();
  return t;
}

// ---- phases ----

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

void Memory::drop_scratch() {
  for (const Scratch& s : scratch_) {
    driver_.cuMemUnmap_(s.address, s.size);
    driver_.cuMemAddressFree_(s.address, s.size);
  }
  scratch_.clear();
}

Status Memory::leave(std::uint64_t& bytes) {
  std::lock_guard lock(mutex_);
  Status first_error;
  auto failed = [&](CUresult r, const std::string& what) {
    if (first_error.ok()) first_error = driver_.error(r, what);
  };
  returned_.clear();
  returned_bytes_ = 0;

  auto goes = [&](const Allocation& a) { return a.resident && !a.pinned; };
  for (const auto& [id, a] : table_.allocations()) {
    if (a.bindings == 0 || !goes(a)) continue;
    if (CUresult r = multicast_.leave(id); r != CUDA_SUCCESS)
      failed(r, "unbinding " + describe(a) + " from its multicast object");
  }
  std::vector<Mapping*> mapped;
  for (auto& [address, m] : table_.mappings())
    if (goes(*table_.find(m.id))) mapped.push_back(&m);
  for (const Table::Run& run : Table::runs(mapped, false)) {
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
    drop_real(a);
    a.resident = false;
    bytes += a.size;
  }
  return first_error;
}

Status Memory::come_back(std::uint64_t id, const Fd& fd) {
  std::lock_guard lock(mutex_);
  Allocation* a = table_.find(id);
  if (a == nullptr) return {Code::kNotFound, "this rank holds no allocation " + std::to_string(id)};
  if (a->resident) return {};  // pinned: it never left
  CUmemGenericAllocationHandle real = 0;
  if (CUresult r = driver_.cuMemImportFromShareableHandle_(
          &real, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      r != CUDA_SUCCESS)
    return driver_.error(r, "importing " + describe(*a));
  a->real = real;
  for (std::size_t i = 0; i < a->mapped_at.size(); ++i) {
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
  returned_bytes_ += a->size;
  // With a mapping and no handle in the program's hands, the mapping alone keeps the memory.
  if (!Table::needs_real(*a)) drop_real(*a);
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
    const std::vector<CUmemAccessDesc> descs = descs_of(run.access);
    if (driver_.cuMemSetAccess_(run.address, run.size, descs.data(), descs.size()) == CUDA_SUCCESS)
      continue;
    for (const Mapping* m : table_.overlapping(run.address, run.size)) {
      if (CUresult r = driver_.cuMemSetAccess_(m->address, m->size, descs.data(), descs.size());
          r != CUDA_SUCCESS)
        return driver_.error(r, "access to " + describe(*table_.find(m->id)));
    }
  }
  return {};
}

}  // namespace amem::shim
