// Slabs' answers to calls about pieces that there are: by handle and by address.
#include <algorithm>
#include <utility>

#include "shim/base/log.h"
#include "shim/blocks/slabs.h"

namespace amem::shim {

// ---- handles ----

CUresult Slabs::release(CUmemGenericAllocationHandle handle) {
  std::unique_lock lock(mutex_);
  Piece* piece = find(handle);
  if (piece == nullptr) return CUDA_ERROR_INVALID_VALUE;
  --piece->refs;
  settle(lock, number_of(handle));
  return CUDA_SUCCESS;
}

/// After something of a piece went: forgets one that nothing holds, with its slab when that is
/// empty. May unlock.
void Slabs::settle(std::unique_lock<std::mutex>& lock, std::uint64_t number) {
  const auto it = pieces_.find(number);
  const Piece piece = it->second;
  if (piece.refs > 0 || piece.reservations > 0) return;
  pieces_.erase(it);
  if (piece.own != 0) {
    lock.unlock();  // memory that is on its way back is waited for
    memory_.handles.release(piece.own);
    return;
  }
  piece_addresses_.erase(piece.address);
  give_room(lock, piece.address, !piece.exported);
}

/// A piece of a slab has come back. What a peer may have mapped is not used again before the slab
/// has gone: a kernel of the peer's may be late with its last word to a communicator that has ended
/// here. May unlock.
void Slabs::give_room(std::unique_lock<std::mutex>& lock, Address address, bool reusable) {
  const auto it = slab_at(address);
  Slab& slab = it->second;
  const bool empty = slab.imported ? --slab.pieces == 0 : room_.give(address, reusable).has_value();
  slab.reused = true;
  if (!empty) return;
  const Address begin = it->first;
  const std::uint64_t size = slab.size;
  if (!slab.imported) sizes_.gone(slab.pool, size);
  slabs_.erase(it);
  lock.unlock();
  const auto r = memory_.mappings.unmap(begin, size);
  if (r.has_value() && *r != CUDA_SUCCESS)
    log_error("unmapping a slab of " + std::to_string(size) + " bytes: " + driver_.name(*r));
  driver_.cuMemAddressFree_(begin, size);
}

/// To an allocation of its own; the lock is let go meanwhile, and held again afterwards. The caller
/// is the only one who knows the piece.
CUresult Slabs::move(std::unique_lock<std::mutex>& lock, CUmemGenericAllocationHandle handle) {
  const Piece before = *find(handle);
  lock.unlock();
  const CUmemAllocationProp prop = Handles::properties_of(before.device, before.rdma);
  CUmemGenericAllocationHandle own = 0;
  const CUresult r = memory_.handles.create(&own, whole(before.size), prop, before.label);
  lock.lock();
  if (r != CUDA_SUCCESS) return r;
  Piece* piece = find(handle);
  piece->own = own;
  piece_addresses_.erase(std::exchange(piece->address, 0));
  give_room(lock, before.address, true);
  if (!lock.owns_lock()) lock.lock();
  return CUDA_SUCCESS;
}

CUresult Slabs::own_handle(CUmemGenericAllocationHandle* own, CUmemGenericAllocationHandle handle) {
  std::unique_lock lock(mutex_);
  Piece* piece = find(handle);
  if (piece == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (piece->own == 0) {
    if (piece->imported || piece->exported || piece->reservations > 0) {
      stop_packing("a buffer whose address is known is to be used elsewhere");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    stop_packing("a buffer is used before it has an address");
    if (CUresult r = move(lock, handle); r != CUDA_SUCCESS) return r;
  }
  *own = find(handle)->own;
  return CUDA_SUCCESS;
}

CUresult Slabs::export_ticket(int* fd, CUmemGenericAllocationHandle handle) {
  std::unique_lock lock(mutex_);
  Piece* piece = find(handle);
  if (piece == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (piece->own == 0 && piece->reservations > 0) {
    std::optional<Ticket> ticket = memory_.handles.ticket_at(piece->address);
    if (!ticket) return CUDA_ERROR_INVALID_VALUE;
    piece->exported = true;
    ticket->offset = piece->address - slab_at(piece->address)->first;
    ticket->size = piece->size;
    ticket->owner_number = static_cast<std::uint32_t>(number_of(handle));
    lock.unlock();
    return Handles::write_ticket(fd, *ticket);
  }
  lock.unlock();
  CUmemGenericAllocationHandle own = 0;
  if (CUresult r = own_handle(&own, handle); r != CUDA_SUCCESS) return r;
  return memory_.handles.export_ticket(fd, own);
}

CUresult Slabs::properties(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  const Piece* piece = find(handle);
  if (piece == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = Handles::properties_of(piece->device, piece->rdma);
  // Who asks that is about to map it once more (ranks that are threads of one process do).
  if (piece->own == 0) expect_reservation(number_of(handle));
  return CUDA_SUCCESS;
}

CUresult Slabs::map(CUdeviceptr address, std::size_t size, std::size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (!is_piece(handle))
    return memory_.mappings.map(address, told_ ? whole(size) : size, offset, handle, flags);
  {
    std::lock_guard lock(mutex_);
    Piece* piece = find(handle);
    if (piece == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (piece->own == 0 && piece->address == address) {
      if ((size != piece->size && size != whole(piece->size)) || offset != 0 || flags != 0 ||
          piece->mappings == piece->reservations)
        return CUDA_ERROR_INVALID_VALUE;
      if (memory_.mappings.absent(address)) {
        log_error("mapping " + std::to_string(size) +
                  " bytes of a slab that is paused with its tag; resume that first");
        return CUDA_ERROR_SYSTEM_NOT_READY;
      }
      ++piece->mappings;
      return CUDA_SUCCESS;
    }
  }
  CUmemGenericAllocationHandle own = 0;
  if (CUresult r = own_handle(&own, handle); r != CUDA_SUCCESS) return r;
  return memory_.mappings.map(address, whole(size), offset, own, flags);
}

Handles::TraceView Slabs::trace_view(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  const Piece* piece = find(handle);
  if (piece == nullptr) return {};
  return {static_cast<std::uint32_t>(number_of(handle)), piece->imported, piece->refs,
          piece->mappings};
}

// ---- addresses ----

std::optional<CUresult> Slabs::retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address) {
  if (!told_) return std::nullopt;
  std::lock_guard lock(mutex_);
  if (slab_at(address) == slabs_.end()) return std::nullopt;
  const std::uint64_t number = piece_at(address);
  if (number == 0 || pieces_.at(number).mappings == 0) return CUDA_ERROR_INVALID_VALUE;
  ++pieces_.at(number).refs;
  *handle = number | kHandleTag;
  return CUDA_SUCCESS;
}

std::optional<CUresult> Slabs::unmap(CUdeviceptr address, std::size_t size) {
  if (!told_) return std::nullopt;
  std::unique_lock lock(mutex_);
  if (slab_at(address) == slabs_.end()) {
    lock.unlock();
    const std::uint64_t real_size = whole(size);
    return real_size == size ? std::nullopt : memory_.mappings.unmap(address, real_size);
  }
  const auto it = piece_addresses_.find(address);
  if (it == piece_addresses_.end()) return CUDA_ERROR_INVALID_VALUE;
  Piece& piece = pieces_.at(it->second);
  if (piece.mappings == 0 || (piece.size != size && whole(piece.size) != size))
    return CUDA_ERROR_INVALID_VALUE;
  --piece.mappings;
  return CUDA_SUCCESS;
}

/// Access is the whole slab's: who reaches one piece reaches its neighbours.
std::optional<CUresult> Slabs::set_access(CUdeviceptr address, std::size_t size,
                                          const CUmemAccessDesc* desc, std::size_t count) {
  if (!told_) return std::nullopt;
  std::unique_lock lock(mutex_);
  const auto it = slab_at(address);
  if (it == slabs_.end()) {
    lock.unlock();
    const std::uint64_t real_size = whole(size);
    return real_size == size ? std::nullopt
                             : memory_.mappings.set_access(address, real_size, desc, count);
  }
  std::vector<CUmemAccessDesc> fresh;
  for (std::size_t i = 0; i < count; ++i) {
    const Access access{static_cast<int>(desc[i].location.type), desc[i].location.id,
                        static_cast<int>(desc[i].flags)};
    const auto& has = it->second.access;
    // What one piece may no longer do, the others still do.
    if (access.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) continue;
    if (std::find(has.begin(), has.end(), access) == has.end()) fresh.push_back(desc[i]);
  }
  if (fresh.empty()) return CUDA_SUCCESS;
  const Address begin = it->first;
  const std::uint64_t slab_size = it->second.size;
  lock.unlock();  // memory that is on its way back is waited for
  const auto r = memory_.mappings.set_access(begin, slab_size, fresh.data(), fresh.size());
  if (r != CUDA_SUCCESS) return r.value_or(CUDA_ERROR_INVALID_VALUE);
  lock.lock();
  if (const auto slab = slabs_.find(begin); slab != slabs_.end())
    for (const CUmemAccessDesc& d : fresh)
      slab->second.access.push_back(
          {static_cast<int>(d.location.type), d.location.id, static_cast<int>(d.flags)});
  return CUDA_SUCCESS;
}

std::optional<CUresult> Slabs::address_range(CUdeviceptr* base, std::size_t* size,
                                             CUdeviceptr address) {
  if (!told_) return std::nullopt;
  std::lock_guard lock(mutex_);
  if (slab_at(address) == slabs_.end()) return std::nullopt;
  const std::uint64_t number = piece_at(address);
  if (number == 0) return CUDA_ERROR_NOT_FOUND;
  const Piece& piece = pieces_.at(number);
  if (base != nullptr) *base = piece.address;
  if (size != nullptr) *size = piece.size;
  return CUDA_SUCCESS;
}

void Slabs::pin(CUdeviceptr address, std::size_t size) {
  memory_.mappings.pin(address, size);
  std::lock_guard lock(mutex_);
  if (const auto it = slab_at(address); it != slabs_.end()) it->second.retired = true;
}

void Slabs::handed_out(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  if (const std::uint64_t number = piece_at(address); number != 0)
    pieces_.at(number).exported = true;
}

}  // namespace amem::shim
