#include "shim/blocks/slabs.h"

#include <algorithm>
#include <utility>

#include "common/numbers.h"
#include "shim/base/log.h"

namespace amem::shim {
namespace {

// NcclOrder: what a thread of NCCL's is in the middle of, as its driver calls show.
//
// NCCL makes a buffer in one thread with these calls in this order, and maps one again with the
// last three (it asks for properties where it imports nothing):
//
// clang-format off
//   granularity ──▶ create or import ──▶ reserve ──▶ map      granularity, properties ──▶ reserve ──▶ map
//            may_create       buffer: its number    buffer: 0
// clang-format on
//
// - may_create: the thread was told the small granularity, and its next creation will be of a
//   buffer. That creation ends it. Any other question about granularity ends it, too.
// - buffer: the thread's next reservation is for this buffer and is answered with its address. That
//   reservation ends it. A creation ends it, too, and a question about another granularity than the
//   one that NCCL asks about before it makes a buffer.
//
// Each thread has one. Plain data: a thread's last calls may come when its other variables have
// ended.
class NcclOrder {
 public:
  /// About granularity. `of_buffers`: as before a buffer; `small`: the answer is the small one.
  void asks(bool of_buffers, bool small) {
    if (!of_buffers) buffer_ = 0;
    may_create_ = small;
  }
  /// Something is being created. Whether the thread was just told the small granularity.
  bool creates() {
    buffer_ = 0;
    return std::exchange(may_create_, false);
  }
  /// It has a handle of the buffer, and no address yet.
  void has(std::uint64_t buffer) { buffer_ = buffer; }
  /// A range of addresses is being reserved. The number of the buffer that it is for; 0: none.
  std::uint64_t reserves() { return std::exchange(buffer_, 0); }

  SlabSizes::Row row;  // of buffers of one size

 private:
  bool may_create_ = false;
  std::uint64_t buffer_ = 0;
};

thread_local NcclOrder order;

bool can_be_packed(const CUmemAllocationProp& prop) {
  return prop.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.win32HandleMetaData == nullptr &&
         prop.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_NONE &&
         prop.allocFlags.usage == 0;
}

}  // namespace

/// Returns the buffer of a handle that the program holds; nullptr: it is none. REQUIRES: the lock
/// is held.
SlabBuffer* Slabs::find(CUmemGenericAllocationHandle handle) {
  SlabBuffer* buffer = book_.buffer(number_of(handle));
  return buffer == nullptr || buffer->refs == 0 ? nullptr : buffer;
}

/// REQUIRES: the lock is held.
CUmemGenericAllocationHandle Slabs::add_buffer(SlabBuffer buffer) {
  const std::uint64_t number = memory_.handles.take_number();
  buffer.refs = 1;
  book_.add(number, buffer);
  order.has(number);
  told_ = true;
  return number | kHandleTag;
}

/// Returns what the driver makes of a size that only somebody can ask for who was told
/// kGranularity.
std::uint64_t Slabs::whole(std::uint64_t size) {
  return size % Handles::kUsualGranularity == 0 || size % kGranularity != 0
             ? size
             : round_up(size, memory_.handles.granularity(std::max(devices_.current(), 0)));
}

/// The size that the program gives for the buffer, or the driver would.
bool Slabs::asked_for(const SlabBuffer& buffer, std::uint64_t size) {
  return buffer.size == size || whole(buffer.size) == size;
}

// ---- making buffers, in NCCL's order ----

std::optional<std::size_t> Slabs::granularity(const CUmemAllocationProp* prop,
                                              CUmemAllocationGranularity_flags option) {
  const bool known =
      option == CU_MEM_ALLOC_GRANULARITY_MINIMUM && prop != nullptr && can_be_packed(*prop);
  // Also once nothing is packed any more there are buffers to map again.
  const bool small = known && size_ != 0 && packing_;
  order.asks(known, small);
  if (!small) return std::nullopt;
  told_ = true;
  return kGranularity;
}

void Slabs::stop_packing(const std::string& why) {
  if (packing_.exchange(false))
    log_warn(why +
             ": this NCCL makes its buffers in an order that amem does not support, so amem no "
             "longer packs them (as with AMEM_SHIM_WITHOUT=slabs)");
}

std::optional<CUresult> Slabs::create(CUmemGenericAllocationHandle* handle, std::size_t size,
                                      const CUmemAllocationProp& prop, const Label& label) {
  const bool small = order.creates();
  // Without the question just before, only a size that the driver would refuse shows that it was
  // asked at all, some time ago.
  const bool packed = small || (told_ && whole(size) != size);
  if (!packed || size == 0 || size % kGranularity != 0 || prop.location.id < 0 ||
      prop.location.id >= devices_.count())
    return std::nullopt;
  const SmallBlocks::Pool pool{prop.location.id, label, prop.allocFlags.gpuDirectRDMACapable != 0,
                               SlabSizes::buffer_of(size)};
  {
    std::lock_guard lock(mutex_);
    book_.sizes().count(pool, order.row);
  }
  bool dirty = false;
  std::optional<Address> space = take(pool, size, &dirty);
  if (!space) {
    std::lock_guard growing(growing_);
    // Other threads may have made space, or taken all of a new slab.
    while (!(space = take(pool, size, &dirty)))
      if (CUresult r = add_slab(pool, size); r != CUDA_SUCCESS) return r;
  }
  if (dirty) {
    if (CUresult r = zero(*space, size, pool.device); r != CUDA_SUCCESS) {
      std::unique_lock lock(mutex_);
      give_space(lock, *space, true);
      return r;
    }
  }
  std::lock_guard lock(mutex_);
  SlabBuffer buffer;
  buffer.address = *space;
  buffer.size = size;
  buffer.device = pool.device;
  buffer.rdma = pool.rdma;
  buffer.label = label;
  *handle = add_buffer(std::move(buffer));
  return CUDA_SUCCESS;
}

std::optional<Address> Slabs::take(const SmallBlocks::Pool& pool, std::uint64_t size, bool* dirty) {
  std::lock_guard lock(mutex_);
  // A slab may be paused with its tag while the program runs on.
  const auto space = book_.take(pool, size, [this](const Slab& slab) {
    return !slab.retired && memory_.mappings.resident(slab.address);
  });
  if (space) *dirty = book_.slab_at(*space)->reused;
  return space;
}

/// Empty space in a slab is nothing to a device of many GiB, and much to a small one.
std::uint64_t Slabs::most(int device) const {
  if (size_) return *size_;
  std::size_t memory = 0;
  const bool known = driver_.cuDeviceTotalMem_(&memory, device) == CUDA_SUCCESS;
  return known ? std::min<std::uint64_t>(kMost, memory / kLeastShare) : kMost;
}

/// REQUIRES: growing_ is held.
CUresult Slabs::add_slab(const SmallBlocks::Pool& pool, std::uint64_t buffer_size) {
  const std::uint64_t unit = memory_.handles.granularity(pool.device);
  const std::uint64_t most = this->most(pool.device);
  std::uint64_t size = 0;
  {
    std::lock_guard lock(mutex_);
    size = book_.sizes().next(pool, order.row, buffer_size, unit, most);
  }
  const CUresult r = make_slab(pool, size);
  // Without slabs NCCL would need no more than this. One more try, as each asks all other ranks to
  // give up what they keep.
  const std::uint64_t least = round_up(buffer_size, unit);
  return r == CUDA_ERROR_OUT_OF_MEMORY && least < size ? make_slab(pool, least) : r;
}

CUresult Slabs::make_slab(const SmallBlocks::Pool& pool, std::uint64_t size) {
  const CUmemAllocationProp prop = brokered_properties(pool.device, pool.rdma);
  CUdeviceptr address = 0;
  if (CUresult r = driver_.cuMemAddressReserve_(&address, size, 0, 0, 0); r != CUDA_SUCCESS)
    return r;
  CUmemGenericAllocationHandle handle = 0;
  CUresult r = memory_.handles.create(&handle, size, prop, pool.label);
  if (r == CUDA_SUCCESS) {
    r = memory_.mappings.map(address, size, 0, handle, 0);
    memory_.handles.release(handle);  // the mapping keeps it
  }
  if (r != CUDA_SUCCESS) {
    driver_.cuMemAddressFree_(address, size);
    return r;
  }
  std::lock_guard lock(mutex_);
  book_.add({address, size, AllocationTable::id_of(handle), pool});
  return CUDA_SUCCESS;
}

/// Clears the range: memory that the driver hands out is zero, so used space of a slab must be,
/// too.
CUresult Slabs::zero(Address address, std::uint64_t size, int device) {
  const LocalDevices::Use use(devices_, device);
  if (use.result() != CUDA_SUCCESS) return use.result();
  // Nobody may have access yet to a slab whose first buffer was freed at once.
  const CUmemAccessDesc desc = device_access(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUresult r = set_access(address, size, &desc, 1).value_or(CUDA_ERROR_INVALID_VALUE);
  return r == CUDA_SUCCESS ? devices_.clear(address, size) : r;
}

/// One more handle of a buffer of a slab that is here. Nothing: the slab is not.
std::optional<CUresult> Slabs::adopt(CUmemGenericAllocationHandle* handle, const Ticket& ticket) {
  std::lock_guard lock(mutex_);
  Slab* slab = book_.slab_of(ticket.id);
  if (slab == nullptr || !ticket.within(slab->size)) return std::nullopt;
  const Address address = slab->address + ticket.offset;
  if (const std::uint64_t known = book_.buffer_from(address); known != 0) {
    ++book_.buffer(known)->refs;
    order.has(known);
    *handle = known | kHandleTag;
    return CUDA_SUCCESS;
  }
  if (!slab->imported) return CUDA_ERROR_INVALID_VALUE;  // freed here, where it was made
  SlabBuffer buffer;
  buffer.address = address;
  buffer.size = ticket.size;
  buffer.device = slab->pool.device;
  buffer.rdma = slab->pool.rdma;
  buffer.imported = true;
  ++slab->buffers;
  *handle = add_buffer(std::move(buffer));
  return CUDA_SUCCESS;
}

CUresult Slabs::import(CUmemGenericAllocationHandle* handle, const Ticket& ticket) {
  std::lock_guard growing(growing_);
  if (const auto r = adopt(handle, ticket); r) return *r;
  CUmemGenericAllocationHandle all = 0;
  if (CUresult r = memory_.handles.import_ticket(&all, ticket); r != CUDA_SUCCESS) return r;
  const std::optional<Handles::Known> known = memory_.handles.known(ticket.id);
  if (known && ticket.offset == 0 && ticket.size == known->size) {
    *handle = all;
    return CUDA_SUCCESS;
  }
  const bool valid = known && ticket.within(known->size);
  CUresult r = valid ? add_imported(ticket, all, *known) : CUDA_ERROR_INVALID_VALUE;
  memory_.handles.release(all);
  if (r == CUDA_SUCCESS) r = adopt(handle, ticket).value_or(CUDA_ERROR_UNKNOWN);
  return r;
}

/// Maps a peer's slab. REQUIRES: growing_ is held.
CUresult Slabs::add_imported(const Ticket& ticket, CUmemGenericAllocationHandle handle,
                             const Handles::Known& known) {
  CUdeviceptr address = 0;
  if (CUresult r = driver_.cuMemAddressReserve_(&address, known.size, 0, 0, 0); r != CUDA_SUCCESS)
    return r;
  if (CUresult r = memory_.mappings.map(address, known.size, 0, handle, 0); r != CUDA_SUCCESS) {
    driver_.cuMemAddressFree_(address, known.size);
    return r;
  }
  std::lock_guard lock(mutex_);
  const SmallBlocks::Pool pool{known.device, {}, known.gpu_direct_rdma};
  book_.add({address, known.size, ticket.id, pool, true});
  return CUDA_SUCCESS;
}

std::optional<CUresult> Slabs::reserve(CUdeviceptr* address, std::size_t size,
                                       std::size_t alignment, CUdeviceptr wish,
                                       unsigned long long flags) {
  const std::uint64_t number = order.reserves();
  if (!told_ || address == nullptr || flags != 0) return std::nullopt;
  {
    std::lock_guard lock(mutex_);
    SlabBuffer* buffer = book_.buffer(number);
    if (buffer != nullptr && wish == 0 && buffer->address != 0 && asked_for(*buffer, size)) {
      ++buffer->reservations;
      *address = buffer->address;
      return CUDA_SUCCESS;
    }
  }
  const std::uint64_t real_size = whole(size);
  if (real_size == size && alignment != kGranularity) return std::nullopt;
  const CUresult r = driver_.cuMemAddressReserve_(
      address, real_size, alignment <= kGranularity ? 0 : alignment, wish, 0);
  if (r == CUDA_SUCCESS && real_size != size) {
    std::lock_guard lock(mutex_);
    rounded_[*address] = real_size;
  }
  return r;
}

Slabs::Contents Slabs::contents(std::uint64_t least) {
  std::lock_guard lock(mutex_);
  return {book_.own(), book_.unused(least)};
}

bool Slabs::contains(CUdeviceptr address) {
  if (!told_) return false;
  std::lock_guard lock(mutex_);
  return book_.slab_at(address) != nullptr;
}

std::optional<CUresult> Slabs::free_address(CUdeviceptr address, std::size_t size) {
  if (!told_) return std::nullopt;
  std::unique_lock lock(mutex_);
  if (const auto rounded = rounded_.find(address); rounded != rounded_.end()) {
    const CUresult r = driver_.cuMemAddressFree_(address, rounded->second);
    if (r == CUDA_SUCCESS) rounded_.erase(rounded);
    return r;
  }
  if (book_.slab_at(address) == nullptr) return std::nullopt;
  const std::uint64_t number = book_.buffer_from(address);
  if (number == 0) return CUDA_ERROR_INVALID_VALUE;
  SlabBuffer& buffer = *book_.buffer(number);
  // The driver refuses to free what is mapped.
  if (!asked_for(buffer, size) || buffer.reservations <= buffer.mappings)
    return CUDA_ERROR_INVALID_VALUE;
  --buffer.reservations;
  drop_if_unused(lock, number);
  return CUDA_SUCCESS;
}

// ---- calls with a buffer's handle ----

CUresult Slabs::release(CUmemGenericAllocationHandle handle) {
  std::unique_lock lock(mutex_);
  SlabBuffer* buffer = find(handle);
  if (buffer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  --buffer->refs;
  drop_if_unused(lock, number_of(handle));
  return CUDA_SUCCESS;
}

/// After something of a buffer went: forgets one that nothing holds, with its slab when that is
/// empty. May unlock.
void Slabs::drop_if_unused(std::unique_lock<std::mutex>& lock, std::uint64_t number) {
  const std::optional<SlabBuffer> gone = book_.forget_if_unused(number);
  if (!gone) return;
  if (gone->own == 0) return give_space(lock, gone->address, !gone->exported);
  lock.unlock();  // memory that is on its way back is waited for
  memory_.handles.release(gone->own);
}

/// The program has freed a buffer of a slab. May unlock.
void Slabs::give_space(std::unique_lock<std::mutex>& lock, Address address, bool reusable) {
  const std::optional<Slab> empty = book_.give(address, reusable);
  if (!empty) return;
  lock.unlock();
  const auto r = memory_.mappings.unmap(empty->address, empty->size);
  if (r.has_value() && *r != CUDA_SUCCESS)
    log_error("unmapping a slab of " + std::to_string(empty->size) + " bytes: " + driver_.name(*r));
  driver_.cuMemAddressFree_(empty->address, empty->size);
}

/// To an allocation of its own; the lock is let go meanwhile, and held again afterwards. The caller
/// is the only one who knows the buffer.
CUresult Slabs::move(std::unique_lock<std::mutex>& lock, CUmemGenericAllocationHandle handle) {
  const SlabBuffer before = *find(handle);
  lock.unlock();
  const CUmemAllocationProp prop = brokered_properties(before.device, before.rdma);
  CUmemGenericAllocationHandle own = 0;
  const CUresult r = memory_.handles.create_bindable(&own, whole(before.size), prop, before.label);
  lock.lock();
  if (r != CUDA_SUCCESS) return r;
  book_.move(*find(handle), own);
  give_space(lock, before.address, true);
  if (!lock.owns_lock()) lock.lock();
  return CUDA_SUCCESS;
}

CUresult Slabs::own_handle(CUmemGenericAllocationHandle* own, CUmemGenericAllocationHandle handle) {
  std::unique_lock lock(mutex_);
  SlabBuffer* buffer = find(handle);
  if (buffer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (buffer->own == 0) {
    if (buffer->imported || buffer->exported || buffer->reservations > 0) {
      stop_packing("NCCL uses a buffer elsewhere whose address is known");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    stop_packing("NCCL uses a buffer before it has an address");
    if (CUresult r = move(lock, handle); r != CUDA_SUCCESS) return r;
  }
  *own = find(handle)->own;
  return CUDA_SUCCESS;
}

CUresult Slabs::export_ticket(int* fd, CUmemGenericAllocationHandle handle) {
  std::unique_lock lock(mutex_);
  SlabBuffer* buffer = find(handle);
  if (buffer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (buffer->own == 0 && buffer->reservations > 0) {
    std::optional<Ticket> ticket = memory_.handles.ticket_at(buffer->address, 1);
    if (!ticket) return CUDA_ERROR_INVALID_VALUE;
    buffer->exported = true;
    ticket->offset = buffer->address - book_.slab_at(buffer->address)->address;
    ticket->size = buffer->size;
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
  const SlabBuffer* buffer = find(handle);
  if (buffer == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = brokered_properties(buffer->device, buffer->rdma);
  // Who asks that is about to map it once more (ranks that are threads of one process do).
  if (buffer->own == 0) order.has(number_of(handle));
  return CUDA_SUCCESS;
}

CUresult Slabs::map(CUdeviceptr address, std::size_t size, std::size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (!is_buffer(handle))
    return memory_.mappings.map(address, told_ ? whole(size) : size, offset, handle, flags);
  {
    std::lock_guard lock(mutex_);
    SlabBuffer* buffer = find(handle);
    if (buffer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (buffer->own == 0 && buffer->address == address) {
      if (!asked_for(*buffer, size) || offset != 0 || flags != 0 ||
          buffer->mappings == buffer->reservations)
        return CUDA_ERROR_INVALID_VALUE;
      if (memory_.mappings.absent(address)) {
        log_error("mapping " + std::to_string(size) +
                  " bytes of a slab that is paused with its tag. Resume this tag first");
        return CUDA_ERROR_SYSTEM_NOT_READY;
      }
      ++buffer->mappings;
      return CUDA_SUCCESS;
    }
  }
  CUmemGenericAllocationHandle own = 0;
  if (CUresult r = own_handle(&own, handle); r != CUDA_SUCCESS) return r;
  return memory_.mappings.map(address, whole(size), offset, own, flags);
}

Handles::TraceView Slabs::trace_view(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  const SlabBuffer* buffer = find(handle);
  if (buffer == nullptr) return {};
  return {static_cast<std::uint32_t>(number_of(handle)), buffer->imported, buffer->refs,
          buffer->mappings};
}

// ---- calls with an address ----

std::optional<CUresult> Slabs::retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address) {
  if (!told_) return std::nullopt;
  std::lock_guard lock(mutex_);
  if (book_.slab_at(address) == nullptr) return std::nullopt;
  SlabBuffer* buffer = book_.buffer(book_.buffer_at(address));
  if (buffer == nullptr || buffer->mappings == 0) return CUDA_ERROR_INVALID_VALUE;
  ++buffer->refs;
  *handle = book_.buffer_at(address) | kHandleTag;
  return CUDA_SUCCESS;
}

std::optional<CUresult> Slabs::unmap(CUdeviceptr address, std::size_t size) {
  if (!told_) return std::nullopt;
  std::unique_lock lock(mutex_);
  if (book_.slab_at(address) == nullptr) {
    lock.unlock();
    const std::uint64_t real_size = whole(size);
    return real_size == size ? std::nullopt : memory_.mappings.unmap(address, real_size);
  }
  SlabBuffer* buffer = book_.buffer(book_.buffer_from(address));
  if (buffer == nullptr || buffer->mappings == 0 || !asked_for(*buffer, size))
    return CUDA_ERROR_INVALID_VALUE;
  --buffer->mappings;
  return CUDA_SUCCESS;
}

/// Access is the whole slab's: who reaches one buffer reaches its neighbours.
std::optional<CUresult> Slabs::set_access(CUdeviceptr address, std::size_t size,
                                          const CUmemAccessDesc* desc, std::size_t count) {
  if (!told_) return std::nullopt;
  std::unique_lock lock(mutex_);
  const Slab* slab = book_.slab_at(address);
  if (slab == nullptr) {
    lock.unlock();
    const std::uint64_t real_size = whole(size);
    return real_size == size ? std::nullopt
                             : memory_.mappings.set_access(address, real_size, desc, count);
  }
  const std::vector<CUmemAccessDesc> fresh = SlabBook::fresh(*slab, desc, count);
  if (fresh.empty()) return CUDA_SUCCESS;
  const Address begin = slab->address;
  const std::uint64_t slab_size = slab->size;
  lock.unlock();  // memory that is on its way back is waited for
  const auto r = memory_.mappings.set_access(begin, slab_size, fresh.data(), fresh.size());
  if (r != CUDA_SUCCESS) return r.value_or(CUDA_ERROR_INVALID_VALUE);
  lock.lock();
  book_.grant(begin, fresh);
  return CUDA_SUCCESS;
}

std::optional<CUresult> Slabs::address_range(CUdeviceptr* base, std::size_t* size,
                                             CUdeviceptr address) {
  if (!told_) return std::nullopt;
  std::lock_guard lock(mutex_);
  if (book_.slab_at(address) == nullptr) return std::nullopt;
  const SlabBuffer* buffer = book_.buffer(book_.buffer_at(address));
  if (buffer == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = buffer->address;
  if (size != nullptr) *size = buffer->size;
  return CUDA_SUCCESS;
}

Result<Pins::Pinned> Slabs::pin(CUdeviceptr address, std::size_t size, amem_v1_PinReason reason) {
  Result<Pins::Pinned> pinned = memory_.pins.pin(address, size, reason);
  std::lock_guard lock(mutex_);
  if (pinned.ok()) book_.retire(pinned.value().ids);
  return pinned;
}

}  // namespace amem::shim
