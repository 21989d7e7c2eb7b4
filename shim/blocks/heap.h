// Heap: brokered memory behind cuMemAlloc and cuMemFree.
//
// A block of the program is a piece of a segment (Segments). Large blocks have a segment each,
// small ones share one (SmallBlocks). What is asked about blocks, or frees them, is about those of
// stream-ordered pools, too (MemoryPools).
// A segment without a block is kept for a moment, while such segments are small in all
// (SegmentCache). Until then a block of the same kind gets it. It goes at once when the program
// asks how much memory is free, or finds none.
// What the driver does besides is done here too: a free waits until the memory is not in use any
// more, peers get access, and a context that goes takes its blocks along.
//
// Any thread. The functions pass the gate themselves, and wait there while the group is paused. The
// lock is held over driver calls, never over a wait for the broker, the gate, a device or memory
// that is on its way back.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "common/driver.h"
#include "shim/base/region.h"
#include "shim/blocks/freed_later.h"
#include "shim/blocks/heap_block.h"
#include "shim/blocks/memory_pools.h"
#include "shim/blocks/peer_access.h"
#include "shim/blocks/segment_cache.h"
#include "shim/blocks/segments.h"
#include "shim/blocks/small_blocks.h"
#include "shim/driver/local_devices.h"
#include "shim/gate/gate.h"
#include "shim/memory/memory.h"
#include "shim/session/session.h"

namespace amem::shim {

class Heap {
 public:
  Heap(const Driver& driver, LocalDevices& devices, Gate& gate, Memory& memory, Session& session)
      : driver_(driver),
        devices_(devices),
        gate_(gate),
        memory_(memory),
        session_(session),
        maker_(driver, memory, session),
        pools_(driver, devices, gate, memory, maker_),
        freed_later_(driver, memory.mappings) {}

  using Block = HeapBlock;
  MemoryPools& pools() { return pools_; }

  // ---- calls of the program; results are what the driver would return ----
  /// Nothing: the thread has no device, and the driver knows what to say.
  std::optional<CUresult> allocate(CUdeviceptr* address, std::size_t size, const Label& label);
  std::optional<CUresult> allocate_pitch(CUdeviceptr* address, std::size_t* pitch,
                                         std::size_t width, std::size_t height,
                                         unsigned element_size, const Label& label);
  /// Nothing: it is none of ours.
  std::optional<CUresult> free(CUdeviceptr address);
  /// Frees it once the work that the stream has now is done (cuMemFreeAsync), and does not wait for
  /// that. `per_thread`: stream 0 is the calling thread's own. Nothing: it is none of ours.
  std::optional<CUresult> free_async(CUdeviceptr address, CUstream stream, bool per_thread);

  /// The block that contains this address.
  std::optional<Block> find(CUdeviceptr address);
  /// The address lies in a segment, whether or not in a block.
  bool owns(CUdeviceptr address);
  /// Returns what the caller's device may do with the block: CU_POINTER_ATTRIBUTE_ACCESS_FLAGS.
  unsigned access_flags(const Block& block);
  void set_sync_memops(CUdeviceptr address, bool value);

  /// Frees what was freed while captures were open, and behind streams whose work is done, unless
  /// more than this many captures still are open. One, when the last one has just ended and the
  /// gate has not been told: then nobody waits there.
  void release_deferred(std::uint32_t captures = 0);

  /// The memory freed behind streams that goes.
  enum class Streams : std::uint8_t {
    kDone,     // memory whose streams have come so far
    kWaitFor,  // all, as the driver waits before it says that there is no memory
  };
  /// Returns `answer`, which `ask` has given. If that is "no memory", frees what is unused and asks
  /// again. The caller is inside the gate.
  template <class Ask>
  CUresult ask_again(CUresult answer, const Ask& ask) {
    return answer == CUDA_ERROR_OUT_OF_MEMORY && drop_unused(Streams::kWaitFor) ? ask() : answer;
  }
  /// Frees what is unused, as far as that needs no wait: for another process, which finds no
  /// memory. Service thread.
  void trim();
  /// Whether to keep anything from now on. Service thread.
  void set_caching(bool on) { caches_ = on; }
  /// Nothing unused is left that a pause would save. False: that is not known while somebody is
  /// inside; ask again. Frees what is unused, so not once the broker may have this rank save.
  /// REQUIRES: set_caching(false), the gate is shut.
  bool no_unused_left();
  /// Space of segments with small blocks that no block is in, in gaps of `least` bytes and more. A
  /// block that gets it later finds anything there, as it would with the driver. REQUIRES: the gate
  /// is shut and nobody is inside.
  Gaps unused(std::uint64_t least);
  /// Frees what is unused, unless that would have to wait for the gate; then waits until the broker
  /// has freed it: what the driver says of free memory counts it.
  void flush_frees(Streams streams = Streams::kDone);

  /// The driver has let the caller's context use the peer's memory; or no longer does.
  CUresult peer_enabled(CUcontext peer);
  CUresult peer_disabled(CUcontext peer);
  /// The driver has destroyed a context and all that it owned. The caller is inside the gate.
  void context_gone(CUcontext context);

 private:
  struct Segment {
    std::uint64_t size = 0;
    int device = 0;
    bool rdma = false;
    bool shared = false;  // among small blocks
    Label label;
    SegmentCache::Kind kind() const { return {device, size, label}; }
  };

  CUresult unsafe_in_capture();
  CUresult add_segment(const SegmentCache::Kind& kind, bool shared, Address* address);
  CUresult place(Block& block, const Label& label);
  bool reusable(Address segment);
  CUresult wait_until_unused(const Block& block);
  std::optional<Block> take_block(Address address);
  void put_back(const Block& block);
  void put_off(const FreedLater::Freed& freed);
  CUresult pass_and_release(const std::vector<Block>& blocks);
  std::vector<AddressRange> retire(const Block& block);
  void drop_later();
  void release(const Block& block);
  std::vector<AddressRange> forget(const std::vector<Address>& segments);
  std::vector<AddressRange> take_unused(std::unique_lock<std::mutex>& lock,
                                        SegmentCache::Time since, Streams streams);
  bool drop_unused(Streams streams);
  void drop_old();
  std::optional<PeerAccess> peer_of_caller(CUcontext peer);
  CUresult grant(const PeerAccess& peer, CUmemAccess_flags flags);
  CUresult revoke(const PeerAccess& peer);
  void forget_peer(const PeerAccess& peer);
  bool has_segment(CUdeviceptr address);
  const Block* block_at(Address address) const;
  bool in_segment(Address address) const;

  const Driver& driver_;
  LocalDevices& devices_;
  Gate& gate_;
  Memory& memory_;
  Session& session_;
  Segments maker_;
  MemoryPools pools_;
  std::atomic<bool> caches_{true};

  std::mutex mutex_;  // guards what follows; taken before BrokeredMemory's
  std::map<Address, Segment> segments_;
  std::map<Address, Block> blocks_;
  FreedLater freed_later_;
  SmallBlocks small_;
  SegmentCache cache_;
  bool drop_is_due_ = false;  // drop_old() will be called
  PeerAccessTable peers_;
  std::uint64_t next_id_ = 1;
};

}  // namespace amem::shim
