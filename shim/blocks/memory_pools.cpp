#include "shim/blocks/memory_pools.h"

#include <algorithm>
#include <bit>

#include "common/numbers.h"
#include "shim/base/log.h"
#include "shim/memory/paused_memory.h"

namespace amem::shim {
namespace {

// Beyond any device; keeps sums of sizes from wrapping.
constexpr std::uint64_t kBeyondPools = 1ULL << 48U;

/// As the driver's own pools take memory at least; a small device's less.
constexpr std::uint64_t kChunk = 32ULL << 20U;
constexpr std::uint64_t kChunksOfDevice = 64;
constexpr std::uint64_t kFreeChunks = 8;
/// Large pieces do not come from what small ones are in, which may live long.
constexpr std::uint64_t kSmall = 1ULL << 20U;

/// For how long a pool that got no memory asks for none while there is another way.
constexpr std::chrono::seconds kShort{1};

// Numbers of the driver's own buffers count up from 1, and Heap's from 1 << 62.
constexpr std::uint64_t kFirstPieceId = 1ULL << 61U;

}  // namespace

std::atomic<bool> MemoryPools::surplus_{false};

// ---- pools; the lock is held ----

MemoryPools::Pool* MemoryPools::pool_of(CUmemoryPool handle) {
  const auto known = by_handle_.find(handle);
  if (known != by_handle_.end()) return known->second;
  const std::optional<Pool> found = look_up(handle);
  if (!found) return nullptr;
  pools_.push_back(*found);
  return by_handle_[handle] = &pools_.back();
}

/// The driver is asked once, because each answer takes about 0.1 us. nullptr: it has none.
CUmemoryPool MemoryPools::current(int device) {
  const auto index = static_cast<std::size_t>(device);
  if (index >= current_.size()) current_.resize(index + 1);
  CUmemoryPool& known = current_[index];
  if (known == nullptr && driver_.cuDeviceGetMemPool_(&known, device) != CUDA_SUCCESS)
    known = nullptr;
  return known;
}

/// Nothing: its memory is the driver's.
std::optional<MemoryPools::Pool> MemoryPools::look_up(CUmemoryPool handle) const {
  Pool pool;
  pool.handle = handle;
  if (const auto made = memory_.unbrokered.pool(handle); made) {
    if (!made->plain) return std::nullopt;
    pool.device = made->device;
    pool.most = made->most;
  } else {
    CUmemoryPool its = nullptr;
    const auto is_default = [&](int device) {
      return driver_.cuDeviceGetDefaultMemPool_(&its, device) == CUDA_SUCCESS && its == handle;
    };
    while (pool.device < devices_.count() && !is_default(pool.device)) ++pool.device;
    if (pool.device == devices_.count()) return std::nullopt;
  }
  read_attributes(pool);
  return pool;
}

void MemoryPools::read_attributes(Pool& pool) const {
  const auto allowed = [&](CUmemPool_attribute attribute) {
    int value = 1;
    driver_.cuMemPoolGetAttribute_(pool.handle, attribute, &value);
    return value != 0;
  };
  pool.opportunistic = allowed(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
  pool.waits = allowed(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
  cuuint64_t threshold = 0;
  driver_.cuMemPoolGetAttribute_(pool.handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
  pool.threshold = threshold;
}

PoolPieces::Shelf MemoryPools::shelf_of(Pool& pool, const Label& label, bool small) {
  const auto [it, fresh] = pool.shelves.try_emplace({label, small}, of_shelf_.size() + 1);
  if (fresh) {
    // Numbers of pools that have gone are free.
    while (of_shelf_.contains(it->second)) ++it->second;
    of_shelf_[it->second] = &pool;
  }
  return it->second;
}

// ---- allocating ----

/// Whether the stream is captured: then what it frees or gets is the graph's. Nothing: no.
std::optional<CUresult> MemoryPools::capture_refuses(CUstream stream, bool per_thread) const {
  if (gate_.captures() == 0) return std::nullopt;
  if (stream == nullptr) stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  if (CUresult r = driver_.cuStreamIsCapturing_(stream, &capturing); r != CUDA_SUCCESS) return r;
  if (capturing == CU_STREAM_CAPTURE_STATUS_NONE) return std::nullopt;
  return CUDA_ERROR_INVALID_VALUE;
}

StreamLines::Passed MemoryPools::passed() {
  return [this](PoolPieces::Line line, std::uint64_t order) { pieces_.passed(line, order); };
}

/// Not while a capture is open.
void MemoryPools::ask_lines() {
  if (gate_.captures() == 0) lines_.ask(passed());
}

std::optional<Address> MemoryPools::take(Pool& pool, PoolPieces::Shelf shelf, std::uint64_t size,
                                         StreamLines::Line& line) {
  // A segment may be paused with its tag while the program runs on.
  PoolPieces::Usable usable;
  if (PausedMemory::any())
    usable = [this](Address segment) { return memory_.mappings.resident(segment); };
  std::optional<Address> address = pieces_.take(shelf, size, line.number, usable);
  if (!address && pool.opportunistic && lines_.any_behind()) {
    ask_lines();
    address = pieces_.take(shelf, size, line.number, usable);
  }
  if (!address) return address;
  const PoolPieces::Point behind = pieces_.used(*address)->freed;
  if (behind.line != line.number || lines_.reuse_in(line)) return address;
  pieces_.give(*address, behind);
  return std::nullopt;
}

/// A piece that the stream waits for.
std::optional<Address> MemoryPools::take_and_wait(PoolPieces::Shelf shelf, std::uint64_t size,
                                                  const StreamLines::Line& line) {
  if (gate_.captures() > 0) return std::nullopt;
  PoolPieces::Usable usable;
  if (PausedMemory::any())
    usable = [this](Address segment) { return memory_.mappings.resident(segment); };
  const auto behind = pieces_.take_behind(shelf, size, usable);
  if (!behind) return std::nullopt;
  StreamLines::Line* const other = lines_.of(behind->point.line);
  if (other == nullptr || other == &line || lines_.wait_behind(*other, line))
    return behind->address;
  pieces_.give(behind->address, behind->point);
  return std::nullopt;
}

/// What to ask for where `least` bytes are needed: more, while much is free.
std::uint64_t MemoryPools::chunk_of(int device, std::uint64_t least) const {
  std::size_t free = 0, memory = 0;
  if (devices_.current() != device || driver_.cuMemGetInfo_ == nullptr ||
      driver_.cuMemGetInfo_(&free, &memory) != CUDA_SUCCESS)
    return least;
  const std::uint64_t chunk = std::clamp<std::uint64_t>(std::bit_floor(memory / kChunksOfDevice),
                                                        Handles::kUsualGranularity, kChunk);
  return least < chunk && free / kFreeChunks > chunk ? chunk : least;
}

/// Maps a new segment for the devices that the driver gives access to the pool.
CUresult MemoryPools::enter(Pool& pool, PoolPieces::Shelf shelf, const Segments::Made& made) {
  std::vector<CUmemAccessDesc> access;
  for (int device = 0; device < devices_.count(); ++device) {
    CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (device == pool.device)
      flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    else
      driver_.cuMemPoolGetAccess_(&flags, pool.handle, &location);
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) access.push_back(device_access(device, flags));
  }
  if (CUresult r = maker_.map(made, access); r != CUDA_SUCCESS) return r;
  pieces_.add(shelf, made.address, made.size);
  pool.amounts.reserved += made.size;
  pool.amounts.reserved_high = std::max(pool.amounts.reserved_high, pool.amounts.reserved);
  any_.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

/// Without the lock while the broker makes it.
CUresult MemoryPools::add_memory(std::unique_lock<std::mutex>& lock, Pool& pool,
                                 PoolPieces::Shelf shelf, const Label& label, std::uint64_t size) {
  const std::uint64_t least = round_up(size, memory_.handles.granularity(pool.device));
  const auto has_space = [&](std::uint64_t more) {
    return pool.most == 0 || pool.amounts.reserved + more <= pool.most;
  };
  const std::uint64_t chunk = chunk_of(pool.device, least);
  CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
  for (const std::uint64_t each : {chunk, least}) {
    if (!has_space(each)) continue;
    ++pool.growing;
    lock.unlock();
    Address address = 0;
    r = maker_.add(
        {pool.device, each, label}, false, [](const auto& create) { return create(); },
        [&](const Segments::Made& made) {
          const std::lock_guard again(mutex_);
          return enter(pool, shelf, made);
        },
        &address);
    lock.lock();
    --pool.growing;
    if (r != CUDA_ERROR_OUT_OF_MEMORY || chunk == least) break;
  }
  return r;
}

void MemoryPools::used(Pool& pool, Address address) {
  pool.amounts.used += pieces_.used(address)->asked;
  pool.amounts.used_high = std::max(pool.amounts.used_high, pool.amounts.used);
}

std::optional<CUresult> MemoryPools::allocate(CUdeviceptr* address, std::size_t size,
                                              CUmemoryPool handle, const Stream& stream,
                                              const Label& label, std::optional<int>& made) {
  if (address == nullptr || size == 0) return std::nullopt;
  if (capture_refuses(stream.stream, stream.per_thread)) return std::nullopt;
  std::unique_lock lock(mutex_);
  StreamLines::Line* line = nullptr;
  if (lines_.find(stream.stream, stream.per_thread, line) != CUDA_SUCCESS) return std::nullopt;
  if (handle == nullptr) handle = current(line->device);
  Pool* const pool = handle != nullptr ? pool_of(handle) : nullptr;
  if (pool == nullptr) return std::nullopt;
  if (size > kBeyondPools) return CUDA_ERROR_OUT_OF_MEMORY;
  const PoolPieces::Shelf shelf = shelf_of(*pool, label, size <= kSmall);
  const StreamLines::Use use(lines_, *line);
  std::optional<Address> taken;
  while (!(taken = take(*pool, shelf, size, *line))) {
    // Where there was no memory a moment ago there is none, and to ask for it takes long.
    if (pool->waits && std::chrono::steady_clock::now() < pool->short_until)
      if ((taken = take_and_wait(shelf, size, *line))) break;
    const CUresult r = add_memory(lock, *pool, shelf, label, size);
    line = use.line();
    if (line == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (r == CUDA_SUCCESS) {
      made = pool->device;
      continue;
    }
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
      pool->short_until = std::chrono::steady_clock::now() + kShort;
      if (pool->waits) taken = take_and_wait(shelf, size, *line);
    }
    if (!taken) return r;
    break;
  }
  used(*pool, *taken);
  *address = *taken;
  return CUDA_SUCCESS;
}

// ---- freeing ----

/// REQUIRES: the lock is held, and the piece is in use.
void MemoryPools::given(Address address, PoolPieces::Point point) {
  const PoolPieces::Piece& piece = *pieces_.used(address);
  Pool& pool = *of_shelf_.at(piece.shelf);
  pool.amounts.used -= piece.asked;
  pieces_.give(address, point);
  if (has_surplus(pool)) surplus_.store(true, std::memory_order_relaxed);
}

std::optional<CUresult> MemoryPools::free_async(CUdeviceptr address, CUstream stream,
                                                bool per_thread) {
  if (!any_.load(std::memory_order_acquire)) return std::nullopt;
  std::unique_lock lock(mutex_);
  if (!pieces_.owns(address)) return std::nullopt;
  // A capture would get a node that frees, and such nodes free only the graph's own memory.
  if (const auto refused = capture_refuses(stream, per_thread); refused) return refused;
  if (pieces_.used(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamLines::Line* line = nullptr;
  if (CUresult r = lines_.find(stream, per_thread, line); r != CUDA_SUCCESS) return r;
  given(address, lines_.free_in(*line));
  return CUDA_SUCCESS;
}

std::optional<CUresult> MemoryPools::free(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  if (!pieces_.owns(address)) return std::nullopt;
  if (pieces_.used(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // If nothing has used it, its memory may still be behind what was there before.
  const PoolPieces::Point before = pieces_.used(address)->freed;
  given(address, lines_.has_passed(before) ? PoolPieces::Point() : before);
  return CUDA_SUCCESS;
}

// ---- looking up ----

std::optional<HeapBlock> MemoryPools::find(CUdeviceptr address) {
  if (!any_.load(std::memory_order_acquire)) return std::nullopt;
  std::lock_guard lock(mutex_);
  const auto found = pieces_.find(address);
  if (!found) return std::nullopt;
  const auto& [begin, piece] = *found;
  const Pool& pool = *of_shelf_.at(piece.shelf);
  HeapBlock block;
  block.address = begin;
  block.size = piece.asked;
  block.device = pool.device;
  block.pool = pool.handle;
  block.sync_memops = true;  // as the driver says of its own
  block.id = kFirstPieceId + piece.number;
  return block;
}

bool MemoryPools::owns(CUdeviceptr address) {
  if (!any_.load(std::memory_order_acquire)) return false;
  std::lock_guard lock(mutex_);
  return pieces_.owns(address);
}

unsigned MemoryPools::access_flags(CUdeviceptr address, int device) {
  const auto flags = memory_.mappings.access(address, {CU_MEM_LOCATION_TYPE_DEVICE, {device}});
  return static_cast<unsigned>(flags.value_or(CU_MEM_ACCESS_FLAGS_PROT_NONE));
}

// ---- what is done to a pool ----

MemoryPools::Amounts MemoryPools::amounts(CUmemoryPool handle) {
  std::lock_guard lock(mutex_);
  const auto known = by_handle_.find(handle);
  return known != by_handle_.end() ? known->second->amounts : Amounts();
}

void MemoryPools::attribute_set(CUmemoryPool handle, CUmemPool_attribute attribute) {
  std::lock_guard lock(mutex_);
  const auto known = by_handle_.find(handle);
  if (known == by_handle_.end()) return;
  Amounts& amounts = known->second->amounts;
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
    amounts.reserved_high = amounts.reserved;
  else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
    amounts.used_high = amounts.used;
  else
    read_attributes(*known->second);
  surplus_.store(true, std::memory_order_relaxed);
}

/// Later segments ask the driver. Without the lock: memory that is on its way back is waited for.
CUresult MemoryPools::access_set(CUmemoryPool handle, const CUmemAccessDesc* access,
                                 std::size_t count) {
  std::vector<AddressRange> segments;
  {
    std::lock_guard lock(mutex_);
    const auto known = by_handle_.find(handle);
    if (known == by_handle_.end()) return CUDA_SUCCESS;
    for (const auto& [kind, shelf] : known->second->shelves)
      for (const AddressRange& segment : pieces_.segments(shelf)) segments.push_back(segment);
  }
  for (const auto& [address, size] : segments) {
    const auto r = memory_.mappings.set_access(address, size, access, count);
    if (r.has_value() && *r != CUDA_SUCCESS) {
      log_error("access to memory of a pool: " + driver_.name(*r));
      return *r;
    }
  }
  return CUDA_SUCCESS;
}

void MemoryPools::trim(CUmemoryPool handle, std::uint64_t least) {
  std::vector<AddressRange> free;
  {
    std::lock_guard lock(mutex_);
    const auto known = by_handle_.find(handle);
    if (known == by_handle_.end()) return;
    ask_lines();
    free = take_free(*known->second, least);
  }
  maker_.drop(free);
}

void MemoryPools::destroyed(CUmemoryPool handle) {
  std::lock_guard lock(mutex_);
  const auto known = by_handle_.find(handle);
  if (known == by_handle_.end()) return;
  known->second->destroyed = true;
  by_handle_.erase(known);
  surplus_.store(true, std::memory_order_relaxed);
}

void MemoryPools::stream_goes(CUstream stream) {
  if (!any_.load(std::memory_order_acquire)) return;
  const bool captured = capture_refuses(stream, false).has_value();
  std::lock_guard lock(mutex_);
  lines_.stream_goes(stream, captured);
}

void MemoryPools::context_gone(CUcontext context) {
  std::lock_guard lock(mutex_);
  current_.clear();  // a reset of the device sets it back
  lines_.context_gone(context, passed());
}

// ---- memory that nobody uses ----

/// Takes segments out of the books, for the caller to drop them inside the gate and without the
/// lock. Not what is on its way back, since whoever frees it waits until it is there, and may be
/// who brings it. REQUIRES: the lock is held.
std::vector<AddressRange> MemoryPools::take_free(Pool& pool, std::uint64_t least) {
  std::vector<AddressRange> free;
  for (const auto& [kind, shelf] : pool.shelves) {
    const auto gone = pieces_.take_segments(shelf, [&](const AddressRange& segment) {
      if (pool.amounts.reserved < least + segment.size) return false;
      for (const CUdeviceptr part : memory_.mappings.starts(segment.address, segment.size))
        if (memory_.mappings.arriving(part)) return false;
      pool.amounts.reserved -= segment.size;
      return true;
    });
    free.insert(free.end(), gone.begin(), gone.end());
  }
  return free;
}

/// The same of all pools; those that were destroyed and have nothing any more are forgotten.
std::vector<AddressRange> MemoryPools::take_free_of_all(bool above_threshold) {
  std::vector<AddressRange> free;
  for (auto pool = pools_.begin(); pool != pools_.end();) {
    const auto of_pool =
        take_free(*pool, above_threshold && !pool->destroyed ? pool->threshold : 0);
    free.insert(free.end(), of_pool.begin(), of_pool.end());
    const bool forgotten = pool->destroyed && pool->growing == 0 && pool->amounts.reserved == 0;
    if (forgotten)
      for (const auto& [kind, shelf] : pool->shelves) of_shelf_.erase(shelf);
    pool = forgotten ? pools_.erase(pool) : std::next(pool);
  }
  return free;
}

void MemoryPools::synchronised() {
  // Shut: the memory may be paused; with a later one.
  if (!gate_.try_enter()) return;
  drop_unused(Drop::kSurplus);
  gate_.leave_quietly();
}

bool MemoryPools::drop_unused(Drop what) {
  if (!any_.load(std::memory_order_acquire)) return false;
  std::unique_lock lock(mutex_);
  surplus_.store(false, std::memory_order_relaxed);
  if (what == Drop::kWaitForAll && gate_.captures() == 0)
    lines_.wait(lock, passed());
  else
    ask_lines();
  const std::vector<AddressRange> free = take_free_of_all(what == Drop::kSurplus);
  // Until the streams have come to the rest.
  if (lines_.any_behind() && std::any_of(pools_.begin(), pools_.end(), &has_surplus))
    surplus_.store(true, std::memory_order_relaxed);
  lock.unlock();
  maker_.drop(free);
  return !free.empty();
}

bool MemoryPools::no_unused_left() {
  if (!any_.load(std::memory_order_acquire)) return true;
  std::vector<AddressRange> free;
  {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    ask_lines();
    free = take_free_of_all(false);
  }
  maker_.drop(free);
  return true;
}

Gaps MemoryPools::unused(std::uint64_t least) {
  if (!any_.load(std::memory_order_acquire)) return {};
  std::vector<AddressRange> free;
  {
    std::lock_guard lock(mutex_);
    free = pieces_.unused(least);
  }
  Gaps gaps;
  for (const auto& [address, size] : free) {
    // A segment may be several allocations.
    for (Address at = address; at < address + size;) {
      CUdeviceptr base = 0;
      std::size_t bytes = 0;
      const auto id = memory_.mappings.id_at(at);
      if (!id || memory_.mappings.address_range(&base, &bytes, at) != CUDA_SUCCESS) break;
      const Address end = std::min<Address>(address + size, base + bytes);
      if (end - at >= least) gaps[*id].push_back({at - base, end - at});
      at = end;
    }
  }
  return gaps;
}

}  // namespace amem::shim
