#include "shim/blocks/heap.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "common/numbers.h"
#include "shim/base/log.h"
#include "shim/blocks/parts.h"
#include "shim/driver/context_errors.h"
#include "shim/memory/free_pass.h"
#include "shim/process/page_clients.h"

namespace amem::shim {
namespace {

// Beyond any device; keeps sums of sizes from wrapping.
constexpr std::uint64_t kTooLarge = 1ULL << 48U;

// Rows begin where the driver's do.
constexpr std::size_t kPitchAlignment = 512;

// Numbers of the driver's own buffers count up from 1.
constexpr std::uint64_t kFirstBlockId = 1ULL << 62U;

constexpr std::chrono::milliseconds kCacheFor{500};

}  // namespace

// ---- looking up; the lock is held ----

const Heap::Block* Heap::block_at(Address address) const {
  const auto it = range_at(blocks_, address);
  return it != blocks_.end() ? &it->second : nullptr;
}

bool Heap::in_segment(Address address) const {
  return range_at(segments_, address) != segments_.end();
}

std::optional<Heap::Block> Heap::find(CUdeviceptr address) {
  {
    std::lock_guard lock(mutex_);
    if (const Block* block = block_at(address); block != nullptr) return *block;
  }
  return pools_.find(address);
}

bool Heap::has_segment(CUdeviceptr address) {
  std::lock_guard lock(mutex_);
  return in_segment(address);
}

bool Heap::owns(CUdeviceptr address) { return has_segment(address) || pools_.owns(address); }

unsigned Heap::access_flags(const Block& block) {
  const int device = devices_.current();
  if (block.pool != nullptr) return pools_.access_flags(block.address, device);
  std::lock_guard lock(mutex_);
  return peers_.reaches(device, block.device) ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                                              : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

void Heap::set_sync_memops(CUdeviceptr address, bool value) {
  std::lock_guard lock(mutex_);
  if (const Block* block = block_at(address); block != nullptr)
    blocks_.at(block->address).sync_memops = value;
}

// ---- allocating ----

/// Whether captures that are open forbid an allocation or a free to this thread. The driver is
/// asked with a free of nothing, which goes by their modes as any other and does no more.
CUresult Heap::unsafe_in_capture() {
  return gate_.captures() == 0 ? CUDA_SUCCESS : driver_.cuMemFree_(0);
}

/// The caller is inside the gate.
CUresult Heap::add_segment(const SegmentCache::Kind& kind, bool shared, Address* address) {
  const auto ask = [this](const auto& create) { return ask_again(create(), create); };
  const auto enter = [&](const Segments::Made& made) {
    // Peers that come or go meanwhile find the segment, or are found here.
    std::lock_guard lock(mutex_);
    std::vector<CUmemAccessDesc> access;
    for (const int device : peers_.devices_reaching(kind.device))
      access.push_back(device_access(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    const CUresult r = maker_.map(made, access);
    if (r == CUDA_SUCCESS)
      segments_.emplace(made.address,
                        Segment{kind.size, kind.device, made.rdma, shared, kind.label});
    return r;
  };
  return maker_.add(kind, shared, ask, enter, address);
}

/// Finds space for the block and enters it.
CUresult Heap::place(Block& block, const Label& label) {
  const SmallBlocks::Pool pool{block.device, label};
  const bool small = block.size <= SmallBlocks::kLargest;
  for (;;) {
    std::unique_lock lock(mutex_);
    std::optional<Address> piece;
    // A chunk may be paused with its tag while the program runs on.
    if (small)
      piece = small_.take(pool, block.size,
                          [this](Address chunk) { return memory_.mappings.resident(chunk); });
    if (!piece) {
      const std::uint64_t size = round_up(small ? SmallBlocks::kChunk : block.size,
                                          memory_.handles.granularity(block.device));
      const SegmentCache::Kind kind{block.device, size, label};
      std::optional<Address> segment =
          cache_.take(kind, [this](Address cached) { return reusable(cached); });
      if (!segment) {
        lock.unlock();
        Address added = 0;
        if (CUresult r = add_segment(kind, small, &added); r != CUDA_SUCCESS) return r;
        lock.lock();
        segment = added;
      }
      if (small) {
        segments_.at(*segment).shared = true;
        small_.add(pool, *segment, size);
        continue;
      }
      piece = segment;
    }
    block.address = *piece;
    block.rdma = std::prev(segments_.upper_bound(*piece))->second.rdma;
    block.id = kFirstBlockId + next_id_++;
    blocks_.emplace(block.address, block);
    return CUDA_SUCCESS;
  }
}

std::optional<CUresult> Heap::allocate(CUdeviceptr* address, std::size_t size, const Label& label) {
  Block block;
  block.size = size;
  block.device = devices_.current();
  if (block.device < 0 || driver_.cuCtxGetCurrent_(&block.context) != CUDA_SUCCESS)
    return std::nullopt;
  if (CUresult r = unsafe_in_capture(); r != CUDA_SUCCESS) return r;
  if (address == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size >= kTooLarge) return CUDA_ERROR_OUT_OF_MEMORY;
  release_deferred();
  const Pass pass(gate_, "cuMemAlloc_v2");
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  if (CUresult r = place(block, label); r != CUDA_SUCCESS) return r;
  *address = block.address;
  return CUDA_SUCCESS;
}

std::optional<CUresult> Heap::allocate_pitch(CUdeviceptr* address, std::size_t* pitch,
                                             std::size_t width, std::size_t height,
                                             unsigned element_size, const Label& label) {
  const bool element = element_size == 4 || element_size == 8 || element_size == 16;
  if (address == nullptr || pitch == nullptr || width == 0 || height == 0 || !element)
    return CUDA_ERROR_INVALID_VALUE;
  if (width >= kTooLarge || height >= kTooLarge) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::size_t row = round_up(width, kPitchAlignment);
  if (height > kTooLarge / row) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto r = allocate(address, row * height, label);
  if (r == CUDA_SUCCESS) *pitch = row;
  return r;
}

// ---- freeing ----

/// Waits as the driver does before it frees: until whoever may use the memory has come to the end
/// of what it was given.
CUresult Heap::wait_until_unused(const Block& block) {
  CUcontext current = nullptr;
  driver_.cuCtxGetCurrent_(&current);
  std::set<CUcontext> contexts = {block.context};
  if (current != nullptr && devices_.current() == block.device) contexts.insert(current);
  {
    std::lock_guard lock(mutex_);
    contexts.merge(peers_.accessors(block.device));
  }
  for (CUcontext context : contexts) {
    CUcontext popped = nullptr;
    if (context != current) {
      const CUresult push_result = driver_.cuCtxPushCurrent_(context);
      if (context_is_gone(push_result)) continue;  // and has no work
      if (push_result != CUDA_SUCCESS) return push_result;
    }
    const CUresult r = driver_.cuCtxSynchronize_();
    if (context != current) driver_.cuCtxPopCurrent_(&popped);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

/// Takes a block out of the books: a second free finds nothing.
std::optional<Heap::Block> Heap::take_block(Address address) {
  std::lock_guard lock(mutex_);
  const auto it = blocks_.find(address);
  if (it == blocks_.end()) return std::nullopt;
  const Block block = it->second;
  blocks_.erase(it);
  return block;
}

/// The program has it still: its free has failed.
void Heap::put_back(const Block& block) {
  std::lock_guard lock(mutex_);
  blocks_.emplace(block.address, block);
}

std::optional<CUresult> Heap::free(CUdeviceptr address) {
  if (devices_.current() < 0) return std::nullopt;  // the driver knows the error for this
  if (!owns(address)) return std::nullopt;
  if (CUresult r = unsafe_in_capture(); r != CUDA_SUCCESS) return r;
  if (!has_segment(address)) return pools_.free(address);
  const std::optional<Block> block = take_block(address);
  if (!block) return CUDA_ERROR_INVALID_VALUE;
  release_deferred();
  // A wait for the context would break the capture, whatever its mode, which the driver's own free
  // does not. The program must not use the memory from here on, so it may as well go later.
  if (gate_.captures() > 0) {
    put_off({*block});
    return CUDA_SUCCESS;
  }
  CUresult r = wait_until_unused(*block);
  if (r == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {  // one has begun just now
    put_off({*block});
    return CUDA_SUCCESS;
  }
  if (r == CUDA_SUCCESS) r = pass_and_release({*block});
  if (r != CUDA_SUCCESS) put_back(*block);
  return r;
}

/// The program has freed it, and it goes later.
void Heap::put_off(const FreedLater::Freed& freed) {
  std::lock_guard lock(mutex_);
  freed_later_.add(freed);
}

/// As release(), for who is not inside the gate.
CUresult Heap::pass_and_release(const std::vector<Block>& blocks) {
  const FreePass pass(gate_, memory_.brokered);
  if (pass.result() == CUDA_SUCCESS)
    for (const Block& block : blocks) release(block);
  return pass.result();
}

std::optional<CUresult> Heap::free_async(CUdeviceptr address, CUstream stream, bool per_thread) {
  if (const auto r = pools_.free_async(address, stream, per_thread); r.has_value()) return r;
  if (!has_segment(address)) return std::nullopt;
  if (stream == nullptr) stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  if (CUresult r = driver_.cuStreamIsCapturing_(stream, &capturing); r != CUDA_SUCCESS) return r;
  // The capture would get a node that frees, and such nodes free only the graph's own memory.
  if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_INVALID_VALUE;
  const std::optional<Block> block = take_block(address);
  if (!block) return CUDA_ERROR_INVALID_VALUE;
  FreedLater::Freed freed{*block};
  // Beside an open capture it waits for the capture's end, and then for the whole context.
  if (gate_.captures() == 0) {
    if (CUresult r = freed_later_.put_behind(stream, freed); r != CUDA_SUCCESS) {
      put_back(*block);
      return r;
    }
    // In a group that is paused no stream has anything to do.
    if (freed.event != nullptr && gate_.mode() == Gate::Mode::kFreesPass &&
        freed_later_.passed(freed, true))
      freed.event = nullptr;
    if (freed.event == nullptr && pass_and_release({*block}) == CUDA_SUCCESS) return CUDA_SUCCESS;
  }
  put_off(freed);
  release_deferred();
  drop_later();
  return CUDA_SUCCESS;
}

/// REQUIRES: the lock is held.
bool Heap::reusable(Address segment) {
  return memory_.mappings.reusable(segment, segments_.at(segment).size);
}

/// A block leaves its segment. What is not kept leaves the books: the caller drops it. REQUIRES:
/// the lock is held.
std::vector<AddressRange> Heap::retire(const Block& block) {
  auto segment = segments_.find(block.address);
  if (segment == segments_.end() || segment->second.shared) {
    const std::optional<Address> empty = small_.give(block.address);
    if (!empty) return {};
    segment = segments_.find(*empty);
    segment->second.shared = false;
  }
  std::vector<Address> gone = {segment->first};
  if (caches_ && reusable(segment->first))
    gone = cache_.add(segment->second.kind(), segment->first, std::chrono::steady_clock::now());
  return forget(gone);
}

/// Gives a block's memory back, or keeps it for a moment. Inside the gate.
void Heap::release(const Block& block) {
  std::vector<AddressRange> ranges;
  {
    std::lock_guard lock(mutex_);
    ranges = retire(block);
  }
  drop_later();
  maker_.drop(ranges);
}

/// Has drop_old() look after what is kept and what waits behind streams.
void Heap::drop_later() {
  {
    std::lock_guard lock(mutex_);
    if (!cache_.oldest() && !freed_later_.any_behind_streams()) return;
    if (std::exchange(drop_is_due_, true)) return;
  }
  session_.run_at(std::chrono::steady_clock::now() + kCacheFor, [this] { drop_old(); });
}

/// Takes segments out of the books, for the caller to drop them inside the gate and without the
/// lock. REQUIRES: the lock is held, and no block is in them.
std::vector<AddressRange> Heap::forget(const std::vector<Address>& segments) {
  std::vector<AddressRange> ranges;
  for (const Address address : segments) {
    const auto segment = segments_.find(address);
    ranges.push_back({address, segment->second.size});
    segments_.erase(segment);
  }
  return ranges;
}

/// Takes what no block needs any more out of the books, and the caller drops it: what has waited
/// behind streams, and what is kept since then or longer. Not what is on its way back, since
/// whoever frees it waits until it is there, and may be who brings it. REQUIRES: the lock is held.
std::vector<AddressRange> Heap::take_unused(std::unique_lock<std::mutex>& lock,
                                            SegmentCache::Time since, Streams streams) {
  std::vector<AddressRange> ranges;
  const auto add = [&ranges](const std::vector<AddressRange>& more) {
    ranges.insert(ranges.end(), more.begin(), more.end());
  };
  if (gate_.captures() == 0)
    for (const Block& block : freed_later_.collect_passed(lock, streams == Streams::kWaitFor))
      add(retire(block));
  add(forget(cache_.take_older(since, [this](Address cached) { return reusable(cached); })));
  return ranges;
}

/// Frees unused memory that is not paused. Returns false if there was none. Inside the gate.
bool Heap::drop_unused(Streams streams) {
  std::unique_lock lock(mutex_);
  const std::vector<AddressRange> unused = take_unused(lock, SegmentCache::Time::max(), streams);
  lock.unlock();
  maker_.drop(unused);
  const bool of_pools = pools_.drop_unused(
      streams == Streams::kWaitFor ? MemoryPools::Drop::kWaitForAll : MemoryPools::Drop::kSurplus);
  return !unused.empty() || of_pools;
}

// The shim's threads do not wait for the lock: a thread of the program may hold it in a driver call
// that waits for what the next command lets through.

bool Heap::no_unused_left() {
  std::vector<AddressRange> unused;
  {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    if (!caches_)  // else the gate is open again
      unused = take_unused(lock, SegmentCache::Time::max(), Streams::kDone);
  }
  maker_.drop(unused);
  return !caches_ ? pools_.no_unused_left() : true;
}

void Heap::trim() {
  if (!gate_.try_enter()) return;
  std::vector<AddressRange> unused;
  if (std::unique_lock lock(mutex_, std::try_to_lock); lock)
    unused = take_unused(lock, SegmentCache::Time::max(), Streams::kDone);
  maker_.drop(unused);
  pools_.no_unused_left();
  gate_.leave_quietly();
}

void Heap::drop_old() {
  const auto now = std::chrono::steady_clock::now();
  bool more = true;
  if (gate_.try_enter()) {  // shut: the memory may be paused; later
    std::vector<AddressRange> old;
    if (std::unique_lock lock(mutex_, std::try_to_lock); lock) {
      old = take_unused(lock, now - kCacheFor, Streams::kDone);
      more = drop_is_due_ = cache_.oldest() || freed_later_.any_behind_streams();
    }
    maker_.drop(old);
    gate_.leave_quietly();
  }
  if (more) session_.run_at(now + kCacheFor, [this] { drop_old(); });
}

Gaps Heap::unused(std::uint64_t least) {
  Gaps gaps = pools_.unused(least);
  std::lock_guard lock(mutex_);
  for (auto& [chunk, unused] : small_.unused(least))
    if (const auto id = memory_.mappings.id_at(chunk); id) gaps.emplace(*id, unused);
  return gaps;
}

void Heap::flush_frees(Streams streams) {
  if (gate_.try_enter()) {
    drop_unused(streams);
    gate_.leave_quietly();
  }
  memory_.brokered.await_frees();
}

void Heap::release_deferred(std::uint32_t captures) {
  std::vector<Block> blocks;
  std::vector<Block> captured;
  {
    std::unique_lock lock(mutex_);
    if (freed_later_.empty() || gate_.captures() > captures) return;
    if (gate_.captures() == 0) blocks = freed_later_.collect_passed(lock, false);
    captured = freed_later_.collect_captured();
  }
  CUresult r = CUDA_SUCCESS;
  std::set<std::pair<int, CUcontext>> waited;
  for (const Block& block : captured)
    if (r == CUDA_SUCCESS && waited.emplace(block.device, block.context).second)
      r = wait_until_unused(block);
  blocks.insert(blocks.end(), captured.begin(), captured.end());
  if (blocks.empty()) return;
  if (r == CUDA_SUCCESS) r = pass_and_release(blocks);
  if (r != CUDA_SUCCESS)
    for (const Block& block : blocks) put_off({block});
}

// ---- peers and contexts ----

std::optional<PeerAccess> Heap::peer_of_caller(CUcontext context) {
  PeerAccess peer;
  peer.context = context;
  peer.accessor_device = devices_.current();
  if (peer.accessor_device < 0 || driver_.cuCtxGetCurrent_(&peer.accessor) != CUDA_SUCCESS ||
      driver_.cuCtxPushCurrent_(context) != CUDA_SUCCESS)
    return std::nullopt;
  peer.device = devices_.current();
  CUcontext popped = nullptr;
  driver_.cuCtxPopCurrent_(&popped);
  return peer;
}

/// On all segments of the peer's device; later ones find it in peers_. Without the lock: memory
/// that is on its way back is waited for. A segment that goes meanwhile has no mapping to grant.
CUresult Heap::grant(const PeerAccess& peer, CUmemAccess_flags flags) {
  std::vector<std::pair<Address, std::uint64_t>> segments;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [address, segment] : segments_)
      if (segment.device == peer.device) segments.emplace_back(address, segment.size);
  }
  const CUmemAccessDesc desc = device_access(peer.accessor_device, flags);
  for (const auto& [address, size] : segments) {
    const auto r = memory_.mappings.set_access(address, size, &desc, 1);
    if (r.has_value() && *r != CUDA_SUCCESS) {
      log_error("access of device " + std::to_string(peer.accessor_device) +
                " to memory of device " + std::to_string(peer.device) + ": " + driver_.name(*r));
      return *r;
    }
  }
  return CUDA_SUCCESS;
}

CUresult Heap::peer_enabled(CUcontext context) {
  const auto peer = peer_of_caller(context);
  if (!peer) return CUDA_SUCCESS;
  const Pass pass(gate_);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  {
    std::lock_guard lock(mutex_);
    const bool known = peers_.reaches(peer->accessor_device, peer->device);
    peers_.add(*peer);
    if (known) return CUDA_SUCCESS;
  }
  const CUresult r = grant(*peer, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  if (r != CUDA_SUCCESS) forget_peer(*peer);
  return r;
}

CUresult Heap::peer_disabled(CUcontext context) {
  const auto peer = peer_of_caller(context);
  if (!peer) return CUDA_SUCCESS;
  const FreePass pass(gate_, memory_.brokered);
  if (pass.result() != CUDA_SUCCESS) return pass.result();
  forget_peer(*peer);
  return revoke(*peer);
}

void Heap::forget_peer(const PeerAccess& peer) {
  std::lock_guard lock(mutex_);
  peers_.remove(peer);
}

/// Unless other contexts of the same devices are peers still.
CUresult Heap::revoke(const PeerAccess& peer) {
  {
    std::lock_guard lock(mutex_);
    if (peers_.reaches(peer.accessor_device, peer.device)) return CUDA_SUCCESS;
  }
  return grant(peer, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

void Heap::context_gone(CUcontext context) {
  std::vector<Block> gone;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [address, block] : blocks_)
      if (block.context == context) gone.push_back(block);
    for (const Block& block : gone) blocks_.erase(block.address);
    // No stream of its works any more.
    const std::vector<Block> later = freed_later_.collect_of(context);
    gone.insert(gone.end(), later.begin(), later.end());
  }
  for (const Block& block : gone) release(block);

  std::vector<PeerAccess> ended;
  {
    std::lock_guard lock(mutex_);
    ended = peers_.context_gone(context);
  }
  for (const PeerAccess& peer : ended) revoke(peer);
  pools_.context_gone(context);
  drop_unused(Streams::kDone);
}

}  // namespace amem::shim
