#include "shim/memory/handles.h"

#include <algorithm>
#include <cstring>

#include "shim/base/log.h"
#include "shim/process/device_nodes.h"

namespace amem::shim {
namespace {

/// In addition to the time in which a session may reconnect to the next broker.
constexpr std::chrono::seconds kBrokerDeadline{30};
constexpr int kAnyDevice = 63;  // of show_device(): no device has this number

/// Most of all the broker's driver makes the pages of what it creates.
std::chrono::microseconds usual_answer(std::uint64_t created_bytes) {
  return kUsualAnswer + std::chrono::microseconds(created_bytes >> 20U);
}

/// Returns what the program sees if the broker refuses. The broker's reason goes to the log.
CUresult refuse(const Status& status, const std::string& what) {
  log_error(what + ": " + status.text());
  return status.code() == Code::kResourceExhausted ? CUDA_ERROR_OUT_OF_MEMORY
                                                   : CUDA_ERROR_SYSTEM_NOT_READY;
}

std::string creating(std::size_t size, int device) {
  return "creating " + std::to_string(size) + " bytes on device " + std::to_string(device);
}

std::unique_ptr<Message> create_message(const DeviceUuid& device, std::size_t size,
                                        const CUmemAllocationProp& prop, const Label& label) {
  auto message = new_message(amem_v1_SessionMessage_create_tag);
  amem_v1_Create& c = message->body.create;
  c.size = size;
  std::memcpy(c.device, device.bytes.data(), sizeof c.device);
  c.gpu_direct_rdma = prop.allocFlags.gpuDirectRDMACapable != 0;
  set_text(c.tag, label.tag);
  c.policy = label.policy;
  return message;
}

/// The allocation `at` of those that were given.
BrokeredAllocation created(const amem_v1_Create& asked, int device, const amem_v1_Created& given,
                           std::size_t at = 0) {
  BrokeredAllocation a;
  a.id = given.id + at;
  a.size = given.count > 1 ? std::min(asked.part, asked.size - at * asked.part) : asked.size;
  a.device = device;
  a.tag = asked.tag;
  a.gpu_direct_rdma = asked.gpu_direct_rdma;
  std::memcpy(a.token.data(), given.token, a.token.size());
  return a;
}

std::unique_ptr<Message> device_nodes_message() {
  return new_message(amem_v1_SessionMessage_device_nodes_tag);
}

}  // namespace

/// Turns a descriptor from the broker into a handle of the program.
CUresult Handles::adopt(CUmemGenericAllocationHandle* handle, BrokeredAllocation allocation,
                        const Fd& fd) {
  std::lock_guard lock(brokered_.mutex);
  session_.taken(allocation.id);
  BrokeredAllocation* known = brokered_.table.find(allocation.id);
  // A reference needs the driver's handle, which mappings alone do without. An imported one would
  // not do for what the process has made.
  if (known != nullptr && known->own)
    if (CUresult r = brokered_.ensure_real(*known); r != CUDA_SUCCESS) return r;
  if (known == nullptr || known->real == 0) {
    CUmemGenericAllocationHandle real = 0;
    if (CUresult r = brokered_.import_descriptor(&real, fd); r != CUDA_SUCCESS) {
      log_error("importing " + describe(allocation) + " from the broker: " + driver_.name(r));
      if (known == nullptr) brokered_.tell_free(allocation.id);
      return r;
    }
    if (known != nullptr) known->real = real;
    allocation.real = real;
  }
  if (known != nullptr) {
    ++known->refs;
  } else {
    allocation.number = take_number();
    brokered_.table.add(allocation);
  }
  *handle = AllocationTable::handle_of(allocation.id);
  return CUDA_SUCCESS;
}

/// The broker serves a device only to who may open its node. The driver has opened it by now.
void Handles::show_device(int device) {
  const std::uint64_t bit = std::uint64_t{1} << static_cast<unsigned>(device);
  if ((shown_.load(std::memory_order_acquire) & bit) != 0) return;
  const std::lock_guard lock(showing_);  // nobody's Create goes out before
  if ((shown_.load(std::memory_order_relaxed) & bit) != 0) return;
  session_.post(*device_nodes_message(), open_device_nodes());
  shown_.fetch_or(bit, std::memory_order_release);
}

std::unique_lock<std::mutex> Handles::show_again(std::vector<SendQueue::Parcel>& first) {
  std::unique_lock lock(showing_);
  if (shown_.load(std::memory_order_relaxed) == 0) return lock;
  if (Result<std::string> bytes = encode(*device_nodes_message()); bytes.ok())
    first.push_back({std::move(bytes).value(), open_device_nodes()});
  return lock;
}

/// Whose device it is on only the broker knows. What the driver has opened is mostly enough.
Result<ReplyPacket> Handles::ask_for_redeemed(Message& request) {
  const auto deadline = kBrokerDeadline + session_.reconnect();
  show_device(kAnyDevice);
  Result<ReplyPacket> answer = session_.call(request, deadline, kUsualAnswer);
  if (answer.ok() || answer.status().code() != Code::kPermissionDenied) return answer;
  session_.post(*device_nodes_message(), openable_device_nodes());
  return session_.call(request, deadline, kUsualAnswer);
}

CUresult Handles::create(CUmemGenericAllocationHandle* handle, std::size_t size,
                         const CUmemAllocationProp& prop, const Label& label) {
  std::vector<CUmemGenericAllocationHandle> handles;
  const CUresult r = create(handles, size, 0, prop, label);
  if (r == CUDA_SUCCESS) *handle = handles.front();
  return r;
}

CUresult Handles::create(std::vector<CUmemGenericAllocationHandle>& handles, std::size_t size,
                         std::size_t part, const CUmemAllocationProp& prop, const Label& label) {
  const int device = prop.location.id;
  if (device < 0 || device >= devices_.count()) return CUDA_ERROR_INVALID_DEVICE;
  show_device(device);
  const auto request = create_message(devices_.uuid(device), size, prop, label);
  request->body.create.part = part;
  Result<ReplyPacket> answer =
      session_.call(*request, kBrokerDeadline + session_.reconnect(), usual_answer(size));
  const std::string what = creating(size, device);
  if (!answer.ok()) {
    if (answer.status().code() == Code::kPermissionDenied) shown_ = 0;  // shown again next time
    return refuse(answer.status(), what);
  }
  const amem_v1_Reply& reply = answer.value().reply;
  const std::vector<std::uint64_t> ids = given_by(reply);
  const std::vector<Fd>& fds = answer.value().fds;
  if (reply.which_result != amem_v1_Reply_created_tag || fds.size() != ids.size())
    return refuse_empty(reply, 0, what);

  CUresult r = CUDA_SUCCESS;
  std::size_t at = 0;
  for (; r == CUDA_SUCCESS && at < ids.size(); ++at) {
    CUmemGenericAllocationHandle handle = 0;
    r = adopt(&handle, created(request->body.create, device, reply.result.created, at), fds[at]);
    if (r == CUDA_SUCCESS) handles.push_back(handle);
  }
  if (r == CUDA_SUCCESS) return r;
  for (const CUmemGenericAllocationHandle handle : handles) release(handle);
  handles.clear();
  std::lock_guard lock(brokered_.mutex);
  for (; at < ids.size(); ++at) {
    session_.taken(ids[at]);
    brokered_.tell_free(ids[at]);
  }
  return r;
}

CUresult Handles::create_bindable(CUmemGenericAllocationHandle* handle, std::size_t size,
                                  const CUmemAllocationProp& prop, const Label& label) {
  return binding_ ? create_own(handle, size, prop, label) : create(handle, size, prop, label);
}

CUresult Handles::create_own(CUmemGenericAllocationHandle* handle, std::size_t size,
                             const CUmemAllocationProp& prop, const Label& label) {
  const int device = prop.location.id;
  if (device < 0 || device >= devices_.count()) return CUDA_ERROR_INVALID_DEVICE;
  show_device(device);
  OwnMemory made;
  if (CUresult r = make(size, prop, label, made); r != CUDA_SUCCESS) return r;
  const auto request = create_message(devices_.uuid(device), size, prop, label);
  request->body.create.made = true;
  const Result<ReplyPacket> answer =
      session_.call(*request, kBrokerDeadline + session_.reconnect(), kUsualAnswer, &made.fd);
  const std::string what = "passing " + std::to_string(size) + " bytes of device " +
                           std::to_string(device) + " to the broker";
  if (!answer.ok()) {
    driver_.cuMemRelease_(made.handle);
    if (answer.status().code() == Code::kPermissionDenied) shown_ = 0;  // shown again next time
    return refuse(answer.status(), what);
  }
  const amem_v1_Reply& reply = answer.value().reply;
  if (reply.which_result != amem_v1_Reply_created_tag) {
    driver_.cuMemRelease_(made.handle);
    return refuse_empty(reply, 0, what);
  }
  BrokeredAllocation a = created(request->body.create, device, reply.result.created);
  a.own = true;
  a.real = made.handle;
  a.number = take_number();
  std::lock_guard lock(brokered_.mutex);
  session_.taken(a.id);
  brokered_.table.add(a);
  *handle = AllocationTable::handle_of(a.id);
  return CUDA_SUCCESS;
}

/// Where there is no space the broker makes it, because it has others give up what they keep of
/// what their programs have freed; what it has made is given back at once.
CUresult Handles::make(std::size_t size, const CUmemAllocationProp& prop, const Label& label,
                       OwnMemory& made) {
  const int device = prop.location.id;
  const auto make_it = [&] {
    return make_own_memory(driver_, device, prop.allocFlags.gpuDirectRDMACapable != 0, size, made);
  };
  CUresult r = make_it();
  if (r != CUDA_ERROR_OUT_OF_MEMORY) return r;
  CUmemGenericAllocationHandle other = 0;
  if (r = create(&other, size, prop, label); r != CUDA_SUCCESS) return r;
  release(other);
  brokered_.await_frees();
  return make_it();
}

CUresult Handles::import_ticket(CUmemGenericAllocationHandle* handle, const Ticket& ticket) {
  {
    std::lock_guard lock(brokered_.mutex);
    ++brokered_.redeeming[ticket.id];
  }
  const CUresult r = redeem(handle, ticket);
  std::lock_guard lock(brokered_.mutex);
  if (--brokered_.redeeming[ticket.id] == 0) brokered_.redeeming.erase(ticket.id);
  if (BrokeredAllocation* a = brokered_.table.find(ticket.id); a != nullptr)
    brokered_.drop_unneeded(*a);
  return r;
}

CUresult Handles::redeem(CUmemGenericAllocationHandle* handle, const Ticket& ticket) {
  const auto request = new_message(amem_v1_SessionMessage_redeem_tag);
  request->body.redeem.id = ticket.id;
  std::memcpy(request->body.redeem.token, ticket.token.data(), ticket.token.size());
  Result<ReplyPacket> answer = ask_for_redeemed(*request);
  const std::string what = "redeeming a ticket for allocation " + std::to_string(ticket.id);
  if (!answer.ok()) return refuse(answer.status(), what);
  const amem_v1_Reply& reply = answer.value().reply;
  if (reply.which_result != amem_v1_Reply_redeemed_tag || answer.value().fds.size() != 1)
    return refuse_empty(reply, 1, what);

  const amem_v1_Redeemed& r = reply.result.redeemed;
  BrokeredAllocation a;
  a.id = r.id;
  a.size = r.size;
  a.device = devices_.ordinal(make_uuid(r.device));
  devices_.maps_memory_of(make_uuid(r.device),
                          "Let each rank see the GPUs of all, or start the job with "
                          "NCCL_P2P_DISABLE=1");
  a.tag = r.tag;
  a.gpu_direct_rdma = r.gpu_direct_rdma;
  a.imported = true;
  a.guest = r.guest;
  a.token = ticket.token;
  return adopt(handle, a, answer.value().fds.front());
}

CUresult Handles::release(CUmemGenericAllocationHandle handle) {
  std::unique_lock lock(brokered_.mutex);
  const std::uint64_t id = AllocationTable::id_of(handle);
  const bool in_time = brokered_.wait_arrival(lock, [&] {
    const BrokeredAllocation* a = brokered_.table.find(id);
    return a != nullptr && a->arriving();
  });
  if (!in_time) return CUDA_ERROR_SYSTEM_NOT_READY;
  BrokeredAllocation* a = brokered_.table.of_handle(handle);
  if (a == nullptr) return CUDA_ERROR_INVALID_VALUE;
  --a->refs;
  brokered_.drop_unneeded(*a);
  return CUDA_SUCCESS;
}

CUresult Handles::export_ticket(int* fd, CUmemGenericAllocationHandle handle) {
  Ticket ticket;
  {
    std::lock_guard lock(brokered_.mutex);
    BrokeredAllocation* a = brokered_.table.of_handle(handle);
    if (a == nullptr) return CUDA_ERROR_INVALID_VALUE;
    a->shared = true;
    ticket = ticket_for(*a);
  }
  return write_ticket(fd, ticket);
}

CUresult Handles::write_ticket(int* fd, const Ticket& ticket) {
  Result<Fd> made = make_ticket(ticket);
  if (!made.ok()) {
    log_error("exporting allocation " + std::to_string(ticket.id) + ": " + made.status().text());
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *fd = made.value().release();
  return CUDA_SUCCESS;
}

std::uint64_t Handles::granularity(int device) const {
  const CUmemAllocationProp prop = brokered_properties(device, false);
  std::size_t unit = 0;
  const CUresult r =
      driver_.cuMemGetAllocationGranularity_(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return r == CUDA_SUCCESS && unit > 0 ? unit : kUsualGranularity;
}

CUresult Handles::properties(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(brokered_.mutex);
  const BrokeredAllocation* a = brokered_.table.of_handle(handle);
  if (a == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = brokered_properties(a->device, a->gpu_direct_rdma);
  return CUDA_SUCCESS;
}

std::optional<CUresult> Handles::retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address) {
  std::lock_guard lock(brokered_.mutex);
  const Mapping* m = brokered_.table.mapping_at(address);
  if (m == nullptr) return std::nullopt;
  BrokeredAllocation& a = *brokered_.table.find(m->id);
  if (a.mapped())
    if (CUresult r = brokered_.ensure_real(a); r != CUDA_SUCCESS) return r;
  ++a.refs;
  *handle = AllocationTable::handle_of(m->id);
  return CUDA_SUCCESS;
}

std::optional<Ticket> Handles::ticket_at(CUdeviceptr address, std::size_t size) {
  std::lock_guard lock(brokered_.mutex);
  const Mapping* first = brokered_.table.mapping_at(address);
  if (first == nullptr) return std::nullopt;
  for (const Mapping* m : brokered_.table.overlapping(address, size))
    brokered_.table.find(m->id)->shared = true;
  return ticket_for(*brokered_.table.find(first->id));
}

std::optional<Handles::Known> Handles::known(std::uint64_t id) {
  std::lock_guard lock(brokered_.mutex);
  const BrokeredAllocation* a = brokered_.table.find(id);
  if (a == nullptr) return std::nullopt;
  return Known{a->size, a->device, a->imported, a->gpu_direct_rdma};
}

Handles::TraceView Handles::trace_view(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(brokered_.mutex);
  const BrokeredAllocation* a = brokered_.table.find(AllocationTable::id_of(handle));
  if (a == nullptr) return {};
  return {a->number, a->imported, a->refs, a->mapped_at.size()};
}

void Handles::unclaimed(const amem_v1_Reply& reply) {
  std::lock_guard lock(brokered_.mutex);
  give_back(reply, 0);
}

/// An answer without what it is about.
CUresult Handles::refuse_empty(const amem_v1_Reply& reply, unsigned mine, const std::string& what) {
  {
    std::lock_guard lock(brokered_.mutex);
    for (const std::uint64_t id : given_by(reply)) session_.taken(id);
    give_back(reply, mine);
  }
  return refuse({Code::kInternal, std::string("the broker's answer came without its descriptor") +
                                      kNoSpaceForDescriptors},
                what);
}

/// Gives back what a Reply gave us and we do not take. `mine`: calls under way for it that are the
/// caller's. REQUIRES: the lock of the brokered memory is held.
void Handles::give_back(const amem_v1_Reply& reply, unsigned mine) {
  for (const std::uint64_t id : given_by(reply)) {
    const auto under_way = brokered_.redeeming.find(id);
    const bool others = under_way != brokered_.redeeming.end() && under_way->second > mine;
    if (brokered_.table.find(id) == nullptr && !others) brokered_.tell_free(id);
  }
}

}  // namespace amem::shim
