#include "shim/blocks/ipc.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "shim/base/log.h"

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

std::optional<CUresult> Ipc::get(CUipcMemHandle* handle, CUdeviceptr address,
                                 const std::optional<AddressRange>& block) {
  std::optional<Ticket> ticket = memory_.handles.ticket_at(address);
  if (!ticket) return std::nullopt;
  if (block) {
    CUdeviceptr base = 0;
    if (memory_.mappings.address_range(&base, nullptr, address) != CUDA_SUCCESS)
      return CUDA_ERROR_INVALID_VALUE;  // freed meanwhile
    ticket->offset = block->address - base;
    ticket->size = block->size;
  }
  // As in the driver: only the process that made the memory hands it out.
  const std::optional<Handles::Known> known = memory_.handles.known(ticket->id);
  if (!known || known->imported) return CUDA_ERROR_INVALID_VALUE;
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

  std::lock_guard lock(mutex_);
  auto [it, fresh] = mappings_.try_emplace(ticket.id);
  Mapped& mapped = it->second;
  CUresult r = fresh ? map(handle, mapped) : CUDA_SUCCESS;
  if (r == CUDA_SUCCESS) {
    const auto known = memory_.handles.known(ticket.id);
    if (ticket.offset > mapped.size || ticket.size > mapped.size - ticket.offset)
      r = CUDA_ERROR_INVALID_HANDLE;
    else if ((flags & kLazyPeers) == 0 && (!known || known->device != device))
      r = CUDA_ERROR_INVALID_VALUE;
    else
      r = grant(mapped, device);
  }
  if (r == CUDA_SUCCESS) {
    *address = mapped.base + ticket.offset;
    Opened& opened = mapped.opens[*address];
    opened.size = ticket.size;
    ++opened.count;
  } else if (mapped.opens.empty()) {
    unmap(it);
  }
  return r;
}

/// Redeems and maps; what was got half-way is given back by unmap().
CUresult Ipc::map(const IpcHandle& handle, Mapped& mapped) {
  CUmemGenericAllocationHandle allocation = 0;
  CUresult r = memory_.handles.import_ticket(&allocation, handle.ticket);
  if (r != CUDA_SUCCESS) {
    log_error("opening the IPC handle that process " + std::to_string(handle.owner_pid) +
              " gave out: the broker did not redeem it; its reason is above");
    return r;
  }
  if (const auto known = memory_.handles.known(handle.ticket.id); known) mapped.size = known->size;
  CUdeviceptr base = 0;
  r = driver_.cuMemAddressReserve_(&base, mapped.size, 0, 0, 0);
  if (r == CUDA_SUCCESS) {
    r = memory_.mappings.map(base, mapped.size, 0, allocation, 0);
    if (r == CUDA_SUCCESS)
      mapped.base = base;
    else
      driver_.cuMemAddressFree_(base, mapped.size);
  }
  memory_.handles.release(allocation);  // from here on the mapping keeps it
  return r;
}

CUresult Ipc::grant(Mapped& mapped, int device) {
  if (std::find(mapped.devices.begin(), mapped.devices.end(), device) != mapped.devices.end())
    return CUDA_SUCCESS;
  const CUmemAccessDesc desc = device_access(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUresult r = memory_.mappings.set_access(mapped.base, mapped.size, &desc, 1)
                         .value_or(CUDA_ERROR_INVALID_VALUE);
  if (r == CUDA_SUCCESS) mapped.devices.push_back(device);
  return r;
}

Ipc::MappedById::iterator Ipc::find(CUdeviceptr address) {
  return std::find_if(mappings_.begin(), mappings_.end(),
                      [&](const auto& entry) { return entry.second.opens.count(address) != 0; });
}

bool Ipc::opened(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  return find(address) != mappings_.end();
}

std::optional<AddressRange> Ipc::piece(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  for (const auto& [id, mapped] : mappings_)
    for (const auto& [begin, opened] : mapped.opens)
      if (address >= begin && address - begin < opened.size)
        return AddressRange{begin, opened.size};
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
    if (use.result() != CUDA_SUCCESS) continue;  // one that is gone has no work
    if (CUresult r = driver_.cuCtxSynchronize_(); r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

std::optional<CUresult> Ipc::close(CUdeviceptr address, bool unmap) {
  std::lock_guard lock(mutex_);
  const auto it = find(address);
  if (it == mappings_.end()) return std::nullopt;
  Mapped& mapped = it->second;
  if (--mapped.opens[address].count > 0) return CUDA_SUCCESS;
  mapped.opens.erase(address);
  return unmap ? unmap_idle() : CUDA_SUCCESS;
}

CUresult Ipc::unmap_idle() {
  CUresult result = CUDA_SUCCESS;
  for (auto it = mappings_.begin(); it != mappings_.end();) {
    const auto each = it++;
    if (!each->second.opens.empty()) continue;
    if (CUresult r = this->unmap(each); result == CUDA_SUCCESS) result = r;
  }
  return result;
}

CUresult Ipc::unmap(MappedById::iterator it) {
  const Mapped mapped = it->second;
  mappings_.erase(it);
  if (mapped.base == 0) return CUDA_SUCCESS;
  const CUresult r =
      memory_.mappings.unmap(mapped.base, mapped.size).value_or(CUDA_ERROR_INVALID_VALUE);
  if (r == CUDA_SUCCESS) driver_.cuMemAddressFree_(mapped.base, mapped.size);
  return r;
}

}  // namespace amem::shim
