#include "shim/blocks/slabs.h"

#include <algorithm>
#include <iterator>

#include "common/rounding.h"
#include "shim/base/log.h"

namespace amem::shim {
namespace {

// The granularity of all devices so far.
constexpr std::uint64_t kUsualGranularity = 2ULL << 20U;

/// What this thread is in the middle of.
struct Order {
  bool small = false;           // it was told the small granularity, and may create now
  std::uint64_t reserving = 0;  // number of the piece that its next reservation is for
  SlabSizes::Row row;
};
thread_local Order order;

/// The ticket names a part of an allocation of this size.
bool inside(const Ticket& ticket, std::uint64_t size) {
  return ticket.size > 0 && ticket.offset <= size && ticket.size <= size - ticket.offset;
}

bool can_be_packed(const CUmemAllocationProp& prop) {
  return prop.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.win32HandleMetaData == nullptr &&
         prop.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_NONE &&
         prop.allocFlags.usage == 0;
}

}  // namespace

// ---- looking up; the lock is held ----

Slabs::SlabMap::iterator Slabs::slab_at(Address address) {
  auto it = slabs_.upper_bound(address);
  if (it == slabs_.begin()) return slabs_.end();
  --it;
  return address < it->first + it->second.size ? it : slabs_.end();
}

Slabs::Piece* Slabs::find(CUmemGenericAllocationHandle handle) {
  const auto it = pieces_.find(number_of(handle));
  return it == pieces_.end() || it->second.refs == 0 ? nullptr : &it->second;
}

std::uint64_t Slabs::piece_at(Address address) const {
  auto it = piece_addresses_.upper_bound(address);
  if (it == piece_addresses_.begin()) return 0;
  --it;
  return address < it->first + pieces_.at(it->second).size ? it->second : 0;
}

CUmemGenericAllocationHandle Slabs::add_piece(Piece piece) {
  const std::uint64_t number = memory_.handles.take_number();
  piece.refs = 1;
  piece_addresses_.emplace(piece.address, number);
  pieces_.emplace(number, std::move(piece));
  order.reserving = number;
  told_ = true;
  return number | kHandleTag;
}

std::uint64_t Slabs::real_granularity(int device) {
  const CUmemAllocationProp prop = Handles::properties_of(device, false);
  std::size_t unit = 0;
  const CUresult r =
      driver_.cuMemGetAllocationGranularity_(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  return r == CUDA_SUCCESS && unit > 0 ? unit : kUsualGranularity;
}

void Slabs::expect_reservation(std::uint64_t number) { order.reserving = number; }

/// What the driver makes of a size that only somebody can ask for who was told kGranularity.
std::uint64_t Slabs::whole(std::uint64_t size) {
  return size % kUsualGranularity == 0 || size % kGranularity != 0
             ? size
             : round_up(size, real_granularity(std::max(devices_.current(), 0)));
}

// ---- making buffers, in NCCL's order ----

std::optional<std::size_t> Slabs::granularity(const CUmemAllocationProp* prop,
                                              CUmemAllocationGranularity_flags option) {
  const bool known =
      option == CU_MEM_ALLOC_GRANULARITY_MINIMUM && prop != nullptr && can_be_packed(*prop);
  // Also once nothing is packed any more there are pieces to map again.
  if (!known) order.reserving = 0;
  order.small = known && size_ != 0 && packing_;
  if (!order.small) return std::nullopt;
  told_ = true;
  return kGranularity;
}

void Slabs::stop_packing(const std::string& why) {
  if (packing_.exchange(false))
    log_warn(why +
             ": this NCCL makes its buffers in an order that amem does not know, so they are no "
             "longer packed (as with AMEM_SLAB=0)");
}

std::optional<CUresult> Slabs::create(CUmemGenericAllocationHandle* handle, std::size_t size,
                                      const CUmemAllocationProp& prop, const Label& label) {
  order.reserving = 0;
  const bool small = std::exchange(order.small, false);
  // Without the question just before, only a size that the driver would refuse shows that it was
  // asked at all, some time ago.
  const bool packed = small || (told_ && whole(size) != size);
  if (!packed || size == 0 || size % kGranularity != 0 || prop.location.id < 0 ||
      prop.location.id >= devices_.count())
    return std::nullopt;
  const SmallBlocks::Pool pool{prop.location.id, label, prop.allocFlags.gpuDirectRDMACapable != 0,
                               SlabSizes::piece_of(size)};
  {
    std::lock_guard lock(mutex_);
    sizes_.count(pool, order.row);
  }
  bool dirty = false;
  std::optional<Address> room = take(pool, size, &dirty);
  if (!room) {
    std::lock_guard growing(growing_);
    // Other threads may have made room, or taken all of a new slab.
    while (!(room = take(pool, size, &dirty)))
      if (CUresult r = add_slab(pool, size); r != CUDA_SUCCESS) return r;
  }
  if (dirty) {
    if (CUresult r = zero(*room, size, pool.device); r != CUDA_SUCCESS) {
      std::unique_lock lock(mutex_);
      give_room(lock, *room, true);
      return r;
    }
  }
  std::lock_guard lock(mutex_);
  Piece piece;
  piece.address = *room;
  piece.size = size;
  piece.device = pool.device;
  piece.rdma = pool.rdma;
  piece.label = label;
  *handle = add_piece(std::move(piece));
  return CUDA_SUCCESS;
}

std::optional<Address> Slabs::take(const SmallBlocks::Pool& pool, std::uint64_t size, bool* dirty) {
  std::lock_guard lock(mutex_);
  // A slab may be paused with its tag while the program runs on.
  const auto room = room_.take(pool, size, [this](Address slab) {
    return !slabs_.at(slab).retired && memory_.mappings.resident(slab);
  });
  if (room) *dirty = slab_at(*room)->second.reused;
  return room;
}

/// What is left empty in a slab is nothing to a device of many GiB, and much to a small one.
std::uint64_t Slabs::most(int device) const {
  if (size_) return *size_;
  std::size_t memory = 0;
  const bool known = driver_.cuDeviceTotalMem_(&memory, device) == CUDA_SUCCESS;
  return known ? std::min<std::uint64_t>(kMost, memory / kLeastShare) : kMost;
}

/// REQUIRES: growing_ is held.
CUresult Slabs::add_slab(const SmallBlocks::Pool& pool, std::uint64_t piece_size) {
  const std::uint64_t unit = real_granularity(pool.device);
  const std::uint64_t most = this->most(pool.device);
  std::uint64_t size = 0;
  {
    std::lock_guard lock(mutex_);
    size = sizes_.next(pool, piece_size, unit, most);
  }
  const CUmemAllocationProp prop = Handles::properties_of(pool.device, pool.rdma);
  CUdeviceptr address = 0;
  if (CUresult r = driver_.cuMemAddressReserve_(&address, size, 0, 0, 0); r != CUDA_SUCCESS)
    return r;
  CUmemGenericAllocationHandle handle = 0;
  CUresult r = memory_.handles.create(&handle, size, prop, pool.label);
  if (r == CUDA_SUCCESS) {
    r = memory_.mappings.map(address, size, 0, handle, 0);
    memory_.handles.release(handle);  // the mapping keeps it
  }
  const std::optional<Ticket> ticket = memory_.handles.ticket_at(address);
  if (r != CUDA_SUCCESS || !ticket) {
    driver_.cuMemAddressFree_(address, size);
    return r != CUDA_SUCCESS ? r : CUDA_ERROR_UNKNOWN;
  }
  std::lock_guard lock(mutex_);
  Slab slab;
  slab.size = size;
  slab.id = ticket->id;
  slab.pool = pool;
  slabs_.emplace(address, std::move(slab));
  room_.add(pool, address, size);
  sizes_.added(pool, size);
  return CUDA_SUCCESS;
}

/// What the driver hands out is zero; so is what another buffer has been in.
CUresult Slabs::zero(Address address, std::uint64_t size, int device) {
  const Devices::Use use(devices_, device);
  CUstream stream = nullptr;
  CUresult r = use.result();
  if (r == CUDA_SUCCESS) r = driver_.cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING);
  if (r != CUDA_SUCCESS) return r;
  // Nobody may have been given access to the slab yet whose first piece came back at once.
  CUmemAccessDesc desc{};
  desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  desc.location.id = device;
  desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  r = set_access(address, size, &desc, 1).value_or(CUDA_ERROR_INVALID_VALUE);
  if (r == CUDA_SUCCESS) r = driver_.cuMemsetD8Async_(address, 0, size, stream);
  const CUresult done = driver_.cuStreamSynchronize_(stream);
  driver_.cuStreamDestroy_(stream);
  return r != CUDA_SUCCESS ? r : done;
}

/// One more handle of a piece of a slab that is here. Nothing: the slab is not.
std::optional<CUresult> Slabs::adopt(CUmemGenericAllocationHandle* handle, const Ticket& ticket) {
  std::lock_guard lock(mutex_);
  const auto slab = std::find_if(slabs_.begin(), slabs_.end(),
                                 [&](const auto& s) { return s.second.id == ticket.id; });
  if (slab == slabs_.end() || !inside(ticket, slab->second.size)) return std::nullopt;
  const Address address = slab->first + ticket.offset;
  if (const auto known = piece_addresses_.find(address); known != piece_addresses_.end()) {
    ++pieces_.at(known->second).refs;
    order.reserving = known->second;
    *handle = known->second | kHandleTag;
    return CUDA_SUCCESS;
  }
  if (!slab->second.imported) return CUDA_ERROR_INVALID_VALUE;  // freed here, where it was made
  Piece piece;
  piece.address = address;
  piece.size = ticket.size;
  piece.device = slab->second.pool.device;
  piece.rdma = slab->second.pool.rdma;
  piece.imported = true;
  ++slab->second.pieces;
  *handle = add_piece(std::move(piece));
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
  const bool valid = known && inside(ticket, known->size);
  CUresult r = valid ? add_imported(ticket, all, *known) : CUDA_ERROR_INVALID_VALUE;
  memory_.handles.release(all);
  if (r == CUDA_SUCCESS) r = adopt(handle, ticket).value_or(CUDA_ERROR_UNKNOWN);
  return r;
}

/// Maps a peer's slab. REQUIRES: growing_ is held.
CUresult Slabs::add_imported(const Ticket& ticket, CUmemGenericAllocationHandle handle,
                             const Handles::Known& known) {
  CUmemAllocationProp prop{};
  if (CUresult r = memory_.handles.properties(&prop, handle); r != CUDA_SUCCESS) return r;
  CUdeviceptr address = 0;
  if (CUresult r = driver_.cuMemAddressReserve_(&address, known.size, 0, 0, 0); r != CUDA_SUCCESS)
    return r;
  if (CUresult r = memory_.mappings.map(address, known.size, 0, handle, 0); r != CUDA_SUCCESS) {
    driver_.cuMemAddressFree_(address, known.size);
    return r;
  }
  std::lock_guard lock(mutex_);
  Slab slab;
  slab.size = known.size;
  slab.id = ticket.id;
  slab.pool.device = known.device;
  slab.pool.rdma = prop.allocFlags.gpuDirectRDMACapable != 0;
  slab.imported = true;
  slabs_.emplace(address, std::move(slab));
  return CUDA_SUCCESS;
}

std::optional<CUresult> Slabs::reserve(CUdeviceptr* address, std::size_t size,
                                       std::size_t alignment, CUdeviceptr wish,
                                       unsigned long long flags) {
  const std::uint64_t number = std::exchange(order.reserving, 0);
  if (!told_ || address == nullptr || flags != 0) return std::nullopt;
  {
    std::lock_guard lock(mutex_);
    const auto it = pieces_.find(number);
    if (it != pieces_.end() && wish == 0 && it->second.address != 0 &&
        (it->second.size == size || whole(it->second.size) == size)) {
      ++it->second.reservations;
      *address = it->second.address;
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

bool Slabs::holds(CUdeviceptr address) {
  if (!told_) return false;
  std::lock_guard lock(mutex_);
  return slab_at(address) != slabs_.end();
}

std::optional<CUresult> Slabs::free_address(CUdeviceptr address, std::size_t size) {
  if (!told_) return std::nullopt;
  std::unique_lock lock(mutex_);
  if (const auto rounded = rounded_.find(address); rounded != rounded_.end()) {
    const CUresult r = driver_.cuMemAddressFree_(address, rounded->second);
    if (r == CUDA_SUCCESS) rounded_.erase(rounded);
    return r;
  }
  if (slab_at(address) == slabs_.end()) return std::nullopt;
  const auto found = piece_addresses_.find(address);
  if (found == piece_addresses_.end()) return CUDA_ERROR_INVALID_VALUE;
  Piece& piece = pieces_.at(found->second);
  // The driver refuses to free what is mapped.
  if ((piece.size != size && whole(piece.size) != size) || piece.reservations <= piece.mappings)
    return CUDA_ERROR_INVALID_VALUE;
  --piece.reservations;
  settle(lock, found->second);
  return CUDA_SUCCESS;
}

}  // namespace amem::shim
