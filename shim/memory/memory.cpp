#include "shim/memory/memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shim/base/log.h"
#include "shim/process/python.h"

namespace amem::shim {
namespace {

constexpr std::chrono::seconds kBrokerDeadline{30};

constexpr std::chrono::seconds kSettleDeadline{1};

/// How long the broker takes to answer when it has nothing else to do: its driver calls, most of
/// all for the pages of what it creates.
std::chrono::microseconds usual_answer(std::uint64_t created_bytes) {
  return std::chrono::microseconds(200 + (created_bytes >> 20U));
}

// More than the broker's own deadlines for a resume; for a broker that is stuck.
constexpr std::chrono::minutes kArrivalDeadline{5};
// How late a caller may see that the process is ending.
constexpr std::chrono::milliseconds kEndCheck{200};

/// What the program sees when the broker refuses. The broker's reason goes to the log.
CUresult refuse(const Status& status, const std::string& what) {
  log_error(what + ": " + status.text());
  return status.code() == Code::kResourceExhausted ? CUDA_ERROR_OUT_OF_MEMORY
                                                   : CUDA_ERROR_SYSTEM_NOT_READY;
}

/// An answer without what it is about.
Status no_descriptor() {
  return {Code::kInternal,
          std::string("the broker's answer came without its descriptor") + kNoRoomForDescriptors};
}

}  // namespace

std::string Memory::describe(const Allocation& a) const {
  return "allocation " + std::to_string(a.id) + " (" + std::to_string(a.size) + " bytes, device " +
         std::to_string(a.device) + ")";
}

CUresult Memory::import_descriptor(CUmemGenericAllocationHandle* real, const Fd& fd) const {
  return driver_.cuMemImportFromShareableHandle_(
      real, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get())),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/// Turns a descriptor from the broker into a handle of the program.
CUresult Memory::adopt(CUmemGenericAllocationHandle* handle, Allocation allocation, const Fd& fd) {
  std::lock_guard lock(mutex_);
  Allocation* known = table_.find(allocation.id);
  // A reference needs the driver's handle, which mappings alone do without.
  if (known == nullptr || known->real == 0) {
    CUmemGenericAllocationHandle real = 0;
    if (CUresult r = import_descriptor(&real, fd); r != CUDA_SUCCESS) {
      log_error("importing " + describe(allocation) + " from the broker: " + driver_.name(r));
      if (known == nullptr) tell_free(allocation.id);
      return r;
    }
    if (known != nullptr) known->real = real;
    allocation.real = real;
  }
  if (known != nullptr) {
    ++known->refs;
  } else {
    allocation.number = take_number();
    table_.add(allocation);
  }
  *handle = Table::handle_of(allocation.id);
  return CUDA_SUCCESS;
}

CUresult Memory::create(CUmemGenericAllocationHandle* handle, std::size_t size,
                        const CUmemAllocationProp& prop, const Label& label) {
  const int device = prop.location.id;
  if (device < 0 || device >= devices_.count()) return CUDA_ERROR_INVALID_DEVICE;
  Message request = amem_v1_SessionMessage_init_zero;
  request.which_body = amem_v1_SessionMessage_create_tag;
  amem_v1_Create& c = request.body.create;
  c.size = size;
  std::memcpy(c.device, devices_.uuid(device).bytes.data(), sizeof c.device);
  c.gpu_direct_rdma = prop.allocFlags.gpuDirectRDMACapable != 0;
  set_text(c.tag, label.tag);
  c.policy = label.policy;
  Result<Packet> answer = session_.call(request, kBrokerDeadline, usual_answer(size));
  const std::string what =
      "creating " + std::to_string(size) + " bytes on device " + std::to_string(device);
  if (!answer.ok()) return refuse(answer.status(), what);
  const amem_v1_Reply& reply = answer.value().message.body.reply;
  if (reply.which_result != amem_v1_Reply_created_tag || answer.value().fds.size() != 1) {
    give_back(reply, 0);
    return refuse(no_descriptor(), what);
  }

  Allocation a;
  a.id = reply.result.created.id;
  a.size = size;
  a.device = device;
  a.tag = label.tag;
  a.gpu_direct_rdma = c.gpu_direct_rdma;
  std::memcpy(a.token.data(), reply.result.created.token, a.token.size());
  return adopt(handle, a, answer.value().fds.front());
}

CUresult Memory::import_ticket(CUmemGenericAllocationHandle* handle, const Ticket& ticket) {
  {
    std::lock_guard lock(mutex_);
    ++redeeming_[ticket.id];
  }
  const CUresult r = redeem(handle, ticket);
  std::lock_guard lock(mutex_);
  if (--redeeming_[ticket.id] == 0) redeeming_.erase(ticket.id);
  if (Allocation* a = table_.find(ticket.id); a != nullptr) settle(*a);
  return r;
}

CUresult Memory::redeem(CUmemGenericAllocationHandle* handle, const Ticket& ticket) {
  Message request = amem_v1_SessionMessage_init_zero;
  request.which_body = amem_v1_SessionMessage_redeem_tag;
  request.body.redeem.id = ticket.id;
  std::memcpy(request.body.redeem.token, ticket.token.data(), ticket.token.size());
  Result<Packet> answer = session_.call(request, kBrokerDeadline, usual_answer(0));
  const std::string what = "redeeming a ticket for allocation " + std::to_string(ticket.id);
  if (!answer.ok()) return refuse(answer.status(), what);
  const amem_v1_Reply& reply = answer.value().message.body.reply;
  if (reply.which_result != amem_v1_Reply_redeemed_tag || answer.value().fds.size() != 1) {
    give_back(reply, 1);
    return refuse(no_descriptor(), what);
  }

  const amem_v1_Redeemed& r = reply.result.redeemed;
  Allocation a;
  a.id = r.id;
  a.size = r.size;
  a.device = devices_.ordinal(make_uuid(r.device));
  a.tag = r.tag;
  a.gpu_direct_rdma = r.gpu_direct_rdma;
  a.imported = true;
  a.token = ticket.token;
  return adopt(handle, a, answer.value().fds.front());
}

/// False: the time is up, or the process is ending.
bool Memory::wait_arrival(std::unique_lock<std::mutex>& lock,
                          const std::function<bool()>& arriving) {
  const auto deadline = std::chrono::steady_clock::now() + kArrivalDeadline;
  while (arriving()) {
    if (ending_.load(std::memory_order_relaxed) || Python::ending_for_caller()) return false;
    if (std::chrono::steady_clock::now() >= deadline) {
      log_error("memory that a resume is bringing back did not arrive; is amemd alive?");
      return false;
    }
    arrivals_.wait_for(lock, kEndCheck);
  }
  return true;
}

/// The mappings in a range once none of them is on its way back. Nothing: the time is up.
std::optional<std::vector<Mapping*>> Memory::settled(std::unique_lock<std::mutex>& lock,
                                                     CUdeviceptr address, std::size_t size) {
  std::vector<Mapping*> touched;
  const bool in_time = wait_arrival(lock, [&] {
    touched = table_.overlapping(address, size);
    return std::any_of(touched.begin(), touched.end(),
                       [&](const Mapping* m) { return table_.find(m->id)->arriving; });
  });
  if (!in_time) return std::nullopt;
  return touched;
}

CUresult Memory::release(CUmemGenericAllocationHandle handle) {
  std::unique_lock lock(mutex_);
  const std::uint64_t id = Table::id_of(handle);
  const bool in_time = wait_arrival(lock, [&] {
    const Allocation* a = table_.find(id);
    return a != nullptr && a->arriving;
  });
  if (!in_time) return CUDA_ERROR_SYSTEM_NOT_READY;
  Allocation* a = table_.find(id);
  if (a == nullptr || a->refs == 0) return CUDA_ERROR_INVALID_VALUE;
  --a->refs;
  settle(*a);
  return CUDA_SUCCESS;
}

/// After a reference or mapping went: lets go of what nothing needs any more.
void Memory::settle(Allocation& a) {
  if (!Table::needs_real(a)) drop_real(a);
  // One that another thread is just redeeming is still ours to the broker.
  if (!Table::unused(a) || redeeming_.contains(a.id)) return;
  const std::uint64_t id = a.id;
  table_.forget(id);
  tell_free(id);
}

void Memory::tell_free(std::uint64_t id) {
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_free_tag;
  message.body.free.id = id;
  session_.post(message);
  frees_under_way_.store(true);
}

void Memory::drop_real(Allocation& a) {
  if (a.real == 0) return;
  if (CUresult r = driver_.cuMemRelease_(a.real); r != CUDA_SUCCESS) {
    log_error("releasing " + describe(a) + ": " + driver_.name(r) + "; tried again with a pause");
    unreleased_.push_back(a.real);
  }
  a.real = 0;
}

/// The driver's handle, fetched again from a mapping when the program had released all of its own.
CUresult Memory::ensure_real(Allocation& a) {
  if (a.real != 0) return CUDA_SUCCESS;
  // What is stale is not its memory any more.
  if (!a.resident || a.mapped_at.empty()) return CUDA_ERROR_INVALID_VALUE;
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
  return write_ticket(fd, ticket);
}

CUresult Memory::write_ticket(int* fd, const Ticket& ticket) {
  Result<Fd> made = make_ticket(ticket);
  if (!made.ok()) {
    log_error("exporting allocation " + std::to_string(ticket.id) + ": " + made.status().text());
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *fd = made.value().release();
  return CUDA_SUCCESS;
}

CUmemAllocationProp Memory::properties_of(int device, bool gpu_direct_rdma) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.allocFlags.gpuDirectRDMACapable = gpu_direct_rdma ? 1 : 0;
  return prop;
}

CUresult Memory::properties(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  const Allocation* a = table_.find(Table::id_of(handle));
  if (a == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = properties_of(a->device, a->gpu_direct_rdma);
  return CUDA_SUCCESS;
}

CUresult Memory::map(CUdeviceptr address, std::size_t size, std::size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags) {
  std::lock_guard lock(mutex_);
  Allocation* a = table_.find(Table::id_of(handle));
  if (a == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!a->resident) {
    log_error("mapping " + describe(*a) + ": it is paused with its tag '" + a->tag +
              "'; resume that first");
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
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
  Allocation& a = *table_.find(m->id);
  if (a.resident)
    if (CUresult r = ensure_real(a); r != CUDA_SUCCESS) return r;
  ++a.refs;
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
  Allocation& a = *table_.find(m->id);
  a.shared = true;
  return ticket_for(a);
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

void Memory::set_sync_memops(CUdeviceptr address, bool on) {
  std::lock_guard lock(mutex_);
  Mapping* m = table_.mapping_at(address);
  if (m == nullptr) return;
  if (on)
    m->sync_memops.insert(address);
  else
    m->sync_memops.erase(address);
}

std::optional<Memory::Absent> Memory::absent(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  const Mapping* m = table_.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  const Allocation& a = *table_.find(m->id);
  if (a.resident) return std::nullopt;
  return Absent{m->address, m->size, a.device, a.gpu_direct_rdma, m->sync_memops.contains(address)};
}

bool Memory::reusable(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  const Mapping* m = table_.mapping_at(address);
  if (m == nullptr) return false;
  const Allocation& a = *table_.find(m->id);
  return a.resident && !a.arriving && !a.shared && !a.pinned && a.bindings == 0 &&
         a.mapped_at.size() == 1 && m->sync_memops.empty();
}

void Memory::settle_frees() {
  if (!frees_under_way_.exchange(false)) return;
  Message request = amem_v1_SessionMessage_init_zero;
  request.which_body = amem_v1_SessionMessage_settle_tag;
  // Where the broker is late the program sees less memory free than there will be, as when another
  // process is about to free some.
  if (const auto answer = session_.call(request, kSettleDeadline, usual_answer(0)); !answer.ok())
    log_debug("waiting for memory to be freed: " + answer.status().text());
}

bool Memory::resident(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  const Mapping* m = table_.mapping_at(address);
  if (m == nullptr) return false;
  const Allocation& a = *table_.find(m->id);
  return a.resident && !a.arriving;
}

std::optional<CUresult> Memory::unmap(CUdeviceptr address, std::size_t size) {
  std::unique_lock lock(mutex_);
  const std::optional<std::vector<Mapping*>> touched = settled(lock, address, size);
  if (!touched) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (touched->empty()) return std::nullopt;
  // What is paused is mapped nowhere, unless it is stale: the driver knows only of the rest.
  const auto absent = [&](const Mapping& m) { return !table_.find(m.id)->resident && !m.stale; };
  for (const Mapping* m : *touched)
    if (absent(*m) && (m->address < address || m->address + m->size > address + size))
      return CUDA_ERROR_INVALID_VALUE;  // a part of a mapping, which the driver refuses too
  for (const Table::Range& part : Table::without(address, size, *touched, absent))
    if (CUresult r = driver_.cuMemUnmap_(part.address, part.size); r != CUDA_SUCCESS) return r;
  for (const Mapping* m : *touched) {
    Allocation& a = *table_.find(m->id);
    table_.remove_mapping(m->address);
    settle(a);
  }
  return CUDA_SUCCESS;
}

std::optional<CUresult> Memory::set_access(CUdeviceptr address, std::size_t size,
                                           const CUmemAccessDesc* desc, std::size_t count) {
  std::unique_lock lock(mutex_);
  const std::optional<std::vector<Mapping*>> touched = settled(lock, address, size);
  if (!touched) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (touched->empty()) return std::nullopt;
  const auto absent = [&](const Mapping& m) { return !table_.find(m.id)->resident; };
  for (const Table::Range& part : Table::without(address, size, *touched, absent))
    if (CUresult r = driver_.cuMemSetAccess_(part.address, part.size, desc, count);
        r != CUDA_SUCCESS)
      return r;
  for (Mapping* m : *touched)
    for (std::size_t i = 0; i < count; ++i)
      Table::grant(*m, {static_cast<int>(desc[i].location.type), desc[i].location.id,
                        static_cast<int>(desc[i].flags)});
  return CUDA_SUCCESS;
}

std::optional<unsigned long long> Memory::access(CUdeviceptr address,
                                                 const CUmemLocation& location) {
  std::lock_guard lock(mutex_);
  const Mapping* m = table_.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  for (const Access& a : m->access)
    if (a.type == static_cast<int>(location.type) && a.id == location.id)
      return static_cast<unsigned long long>(a.flags);
  return CU_MEM_ACCESS_FLAGS_PROT_NONE;
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

bool Memory::arrived(CUdeviceptr address, std::size_t size) {
  std::unique_lock lock(mutex_);
  return settled(lock, address, size).has_value();
}

void Memory::unclaimed(const amem_v1_Reply& reply) { give_back(reply, 0); }

/// Of what a Reply gave us and we do not take. `mine`: calls under way for it that are the
/// caller's.
void Memory::give_back(const amem_v1_Reply& reply, unsigned mine) {
  std::lock_guard lock(mutex_);
  if (reply.which_result == amem_v1_Reply_created_tag) return tell_free(reply.result.created.id);
  if (reply.which_result != amem_v1_Reply_redeemed_tag) return;
  const std::uint64_t id = reply.result.redeemed.id;
  const auto under_way = redeeming_.find(id);
  const bool others = under_way != redeeming_.end() && under_way->second > mine;
  if (table_.find(id) == nullptr && !others) tell_free(id);
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

std::vector<Memory::Usage> Memory::usage() {
  std::lock_guard lock(mutex_);
  std::map<std::pair<std::string, int>, Usage> found;
  for (const auto& [id, a] : table_.allocations()) {
    Usage& usage = found.try_emplace({a.tag, a.device}, Usage{a.tag, a.device}).first->second;
    (a.imported   ? usage.imported_bytes
     : a.resident ? usage.resident_bytes
                  : usage.away_bytes) += a.size;
    ++usage.allocations;
  }
  std::vector<Usage> usages;
  for (auto& [key, usage] : found) usages.push_back(std::move(usage));
  return usages;
}

}  // namespace amem::shim
