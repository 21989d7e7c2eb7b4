#include "shim/blocks/ipc.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <string>

#include "shim/base/log.h"
#include "shim/driver/context_errors.h"

namespace amem::shim {

static_assert(sizeof(CUipcMemHandle) == sizeof(IpcHandleBytes));

std::optional<IpcHandle> Ipc::read(const CUipcMemHandle& handle) {
  IpcHandleBytes bytes;
  std::memcpy(bytes.data(), handle.reserved, bytes.size());
  return unpack_ipc_handle(bytes);
}

CUipcMemHandle Ipc::write(const IpcHandle& handle) {
  const IpcHandleBytes bytes = pack(handle);
  CUipcMemHandle out;
  std::memcpy(out.reserved, bytes.data(), bytes.size());
  return out;
}

CUresult Ipc::get(CUipcMemHandle* handle, const AddressRange& block) {
  std::optional<Ticket> ticket = memory_.handles.ticket_at(block.address, block.size);
  CUdeviceptr base = 0;
  if (!ticket || memory_.mappings.address_range(&base, nullptr, block.address) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_VALUE;  // freed meanwhile
  ticket->offset = block.address - base;
  ticket->size = block.size;
  *handle = write({*ticket, ::getpid()});
  return CUDA_SUCCESS;
}

CUresult Ipc::open(CUdeviceptr* address, const IpcHandle& handle, unsigned flags) {
  constexpr unsigned kLazyPeers = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
  const Ticket& ticket = handle.ticket;
  if ((flags & ~kLazyPeers) != 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = devices_.current();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const auto known = memory_.handles.known(ticket.id); known && !known->imported)
    return CUDA_ERROR_INVALID_CONTEXT;

  std::lock_guard opening(opening_);
  std::unique_lock lock(mutex_);
  auto it = mappings_.find(ticket.id);
  if (it == mappings_.end()) {
    lock.unlock();
    Mapped fresh;
    if (CUresult r = map(handle, fresh); r != CUDA_SUCCESS) return r;
    lock.lock();
    by_base_[fresh.base] = ticket.id;
    it = mappings_.emplace(ticket.id, fresh).first;
  }
  Mapped& mapped = it->second;
  const CUdeviceptr here = mapped.base + ticket.offset;
  const auto known = memory_.handles.known(ticket.id);
  CUresult r = CUDA_SUCCESS;
  if (ticket.offset > mapped.size || ticket.size > mapped.size - ticket.offset)
    r = CUDA_ERROR_INVALID_HANDLE;
  else if ((flags & kLazyPeers) == 0 && (!known || known->device != device))
    r = CUDA_ERROR_INVALID_VALUE;
  if (r == CUDA_SUCCESS) {
    // Counted before access is granted: who closes another piece meanwhile leaves it mapped.
    Opened& opened = mapped.opens[here];
    opened.size = ticket.size;
    ++opened.count;
    lock.unlock();
    r = grant(ticket.id, device);
    if (r == CUDA_SUCCESS) {
      *address = here;
      return r;
    }
    close(here, false);
    lock.lock();
  }
  // Nobody has been given an address in it, unless it was open before.
  const std::optional<Mapped> unused = take_closed(mappings_.find(ticket.id));
  lock.unlock();
  if (unused) this->unmap(*unused);
  return r;
}

/// The allocations of a block, whose ids follow each other (Created.count), and their size.
CUresult Ipc::redeem(const IpcHandle& handle, std::vector<CUmemGenericAllocationHandle>& parts,
                     std::size_t& size) {
  Ticket ticket = handle.ticket;
  const std::uint64_t end = ticket.offset + ticket.size;
  for (; parts.empty() || size < end; ++ticket.id) {
    CUmemGenericAllocationHandle allocation = 0;
    if (CUresult r = memory_.handles.import_ticket(&allocation, ticket); r != CUDA_SUCCESS) {
      log_error("opening the IPC handle that process " + std::to_string(handle.owner_pid) +
                " provided: the broker did not redeem it. Its reason is above");
      return parts.empty() ? r : CUDA_ERROR_INVALID_HANDLE;
    }
    const auto known = memory_.handles.known(ticket.id);
    parts.push_back(allocation);
    size += known ? known->size : 0;
  }
  return CUDA_SUCCESS;
}

/// Redeems and maps; what was got half-way is given back.
CUresult Ipc::map(const IpcHandle& handle, Mapped& mapped) {
  std::vector<CUmemGenericAllocationHandle> parts;
  CUresult r = redeem(handle, parts, mapped.size);
  if (r == CUDA_SUCCESS) r = driver_.cuMemAddressReserve_(&mapped.base, mapped.size, 0, 0, 0);
  if (r == CUDA_SUCCESS) {
    r = memory_.mappings.map(mapped.base, parts);
    if (r != CUDA_SUCCESS) driver_.cuMemAddressFree_(mapped.base, mapped.size);
  }
  for (const auto part : parts) memory_.handles.release(part);  // mappings keep it
  return r;
}

/// REQUIRES: opening_ is held, and the mapping is open.
CUresult Ipc::grant(std::uint64_t id, int device) {
  Mapped mapped;
  {
    std::lock_guard lock(mutex_);
    mapped = mappings_.at(id);
  }
  if (std::find(mapped.devices.begin(), mapped.devices.end(), device) != mapped.devices.end())
    return CUDA_SUCCESS;
  const CUmemAccessDesc desc = device_access(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUresult r = memory_.mappings.set_access(mapped.base, mapped.size, &desc, 1)
                         .value_or(CUDA_ERROR_INVALID_VALUE);
  if (r != CUDA_SUCCESS) return r;
  std::lock_guard lock(mutex_);
  mappings_.at(id).devices.push_back(device);
  return CUDA_SUCCESS;
}

/// The mapping that contains the address. REQUIRES: the lock is held.
Ipc::MappedById::iterator Ipc::at(CUdeviceptr address) {
  const auto next = by_base_.upper_bound(address);
  if (next == by_base_.begin()) return mappings_.end();
  const auto found = mappings_.find(std::prev(next)->second);
  return address - found->second.base < found->second.size ? found : mappings_.end();
}

bool Ipc::opened(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  const auto it = at(address);
  return it != mappings_.end() && it->second.opens.count(address) != 0;
}

std::optional<AddressRange> Ipc::block(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  const auto it = at(address);
  if (it == mappings_.end()) return std::nullopt;
  for (const auto& [begin, opened] : it->second.opens)
    if (address >= begin && address - begin < opened.size) return AddressRange{begin, opened.size};
  return std::nullopt;
}

CUresult Ipc::wait_until_unused() {
  std::set<int> devices;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, mapped] : mappings_)
      devices.insert(mapped.devices.begin(), mapped.devices.end());
  }
  for (const int device : devices) {
    const LocalDevices::Use use(devices_, device);
    if (context_is_gone(use.result())) continue;  // and has no work
    if (use.result() != CUDA_SUCCESS) return use.result();
    if (CUresult r = driver_.cuCtxSynchronize_(); r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

std::optional<CUresult> Ipc::close(CUdeviceptr address, bool unmap) {
  {
    std::lock_guard lock(mutex_);
    const auto it = at(address);
    if (it == mappings_.end()) return std::nullopt;
    const auto opened = it->second.opens.find(address);
    if (opened == it->second.opens.end()) return std::nullopt;
    if (--opened->second.count > 0) return CUDA_SUCCESS;
    it->second.opens.erase(opened);
  }
  return unmap ? unmap_closed() : CUDA_SUCCESS;
}

bool Ipc::any_closed() {
  std::lock_guard lock(mutex_);
  return std::any_of(mappings_.begin(), mappings_.end(),
                     [](const auto& entry) { return entry.second.opens.empty(); });
}

/// Takes a mapping out of the books that is open no more. REQUIRES: the lock is held.
std::optional<Ipc::Mapped> Ipc::take_closed(MappedById::iterator it) {
  if (it == mappings_.end() || !it->second.opens.empty()) return std::nullopt;
  std::optional<Mapped> mapped = std::move(it->second);
  by_base_.erase(mapped->base);
  mappings_.erase(it);
  return mapped;
}

CUresult Ipc::unmap_closed() {
  std::vector<Mapped> closed;
  {
    std::lock_guard lock(mutex_);
    for (auto it = mappings_.begin(); it != mappings_.end();)
      if (std::optional<Mapped> mapped = take_closed(it++)) closed.push_back(std::move(*mapped));
  }
  CUresult result = CUDA_SUCCESS;
  for (const Mapped& mapped : closed)
    if (CUresult r = this->unmap(mapped); result == CUDA_SUCCESS) result = r;
  return result;
}

CUresult Ipc::unmap(const Mapped& mapped) {
  const CUresult r =
      memory_.mappings.unmap(mapped.base, mapped.size).value_or(CUDA_ERROR_INVALID_VALUE);
  if (r == CUDA_SUCCESS) driver_.cuMemAddressFree_(mapped.base, mapped.size);
  return r;
}

}  // namespace amem::shim
