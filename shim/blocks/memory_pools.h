// MemoryPools: brokered memory behind cuMemAllocAsync and cuMemAllocFromPoolAsync.
//
// The program's pools are the driver's, which also knows their settings and the current one of each
// device. Empty there, they hold nothing; what is allocated from them comes from segments, in
// pieces (PoolPieces). A piece that is freed goes to the next allocation in the same stream at
// once, to others once the stream has come to the free, and, where there is no memory and the
// pool's settings allow it, to a stream that is made to wait for that (StreamLines).
// Segments that are free leave when the program synchronises, as far as the pool holds more than
// its release threshold; all of them when memory is short, and with a pause.
// The driver's stays what is allocated while its stream is captured, which is a graph's, and all of
// pools whose memory other processes may import.
//
// Any thread, and the functions pass the gate themselves. The lock is held over driver calls, never
// over a wait for the broker, the gate or a device.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/driver.h"
#include "shim/base/region.h"
#include "shim/blocks/heap_block.h"
#include "shim/blocks/pool_pieces.h"
#include "shim/blocks/segments.h"
#include "shim/blocks/small_blocks.h"
#include "shim/blocks/stream_lines.h"
#include "shim/driver/local_devices.h"
#include "shim/gate/gate.h"
#include "shim/memory/memory.h"

namespace amem::shim {

class MemoryPools {
 public:
  MemoryPools(const Driver& driver, LocalDevices& devices, Gate& gate, Memory& memory,
              const Segments& maker)
      : driver_(driver),
        devices_(devices),
        gate_(gate),
        memory_(memory),
        maker_(maker),
        lines_(driver) {}

  // ---- calls of the program; results are what the driver would return ----
  struct Stream {
    CUstream stream = nullptr;
    bool per_thread = false;  // stream 0 is the calling thread's own
  };
  /// `pool`: nullptr is the current one of the stream's device. `made`: the device of new memory,
  /// if that was needed. Nothing: it is the driver's. The caller is inside the gate.
  std::optional<CUresult> allocate(CUdeviceptr* address, std::size_t size, CUmemoryPool pool,
                                   const Stream& stream, const Label& label,
                                   std::optional<int>& made);
  // Nothing, of these: it is none of ours.
  std::optional<CUresult> free_async(CUdeviceptr address, CUstream stream, bool per_thread);
  /// The program has seen to it that nothing uses it any more, as the driver demands.
  std::optional<CUresult> free(CUdeviceptr address);
  std::optional<HeapBlock> find(CUdeviceptr address);
  bool owns(CUdeviceptr address);
  /// Returns what the device may do with the block: CU_POINTER_ATTRIBUTE_ACCESS_FLAGS.
  unsigned access_flags(CUdeviceptr address, int device);

  /// What the pool has here, in bytes.
  struct Amounts {
    std::uint64_t reserved = 0;
    std::uint64_t reserved_high = 0;
    std::uint64_t used = 0;
    std::uint64_t used_high = 0;
  };
  Amounts amounts(CUmemoryPool pool);
  /// The driver has a new value of one of its attributes.
  void attribute_set(CUmemoryPool pool, CUmemPool_attribute attribute);
  /// The driver has given or taken access to the pool's memory.
  CUresult access_set(CUmemoryPool pool, const CUmemAccessDesc* access, std::size_t count);
  /// Frees what is free until the pool has no more than these bytes here. The caller is inside the
  /// gate.
  void trim(CUmemoryPool pool, std::uint64_t least);
  /// Before the driver destroys it. Its memory goes when the last of it has been freed.
  void destroyed(CUmemoryPool pool);
  /// Calls `set`, which changes the current pool of a device at the driver.
  template <class Set>
  CUresult set_current(const Set& set) {
    std::lock_guard lock(mutex_);
    current_.clear();
    return set();
  }
  /// Before the driver destroys it.
  void stream_goes(CUstream stream);
  /// The driver has destroyed a context. Memory of pools is the device's, and stays.
  void context_gone(CUcontext context);

  /// Whether a synchronisation may let memory go. One load.
  static bool surplus() { return surplus_.load(std::memory_order_relaxed); }
  /// The program has waited for a stream, an event or a context.
  void synchronised();

  // ---- memory that nobody uses ----
  enum class Drop : std::uint8_t {
    kSurplus,     // what pools have above their thresholds
    kAll,         // whatever their thresholds
    kWaitForAll,  // the same, once the streams have come to all frees
  };
  /// False: there was none. The caller is inside the gate.
  bool drop_unused(Drop what);
  /// As Heap's: for the shim's own threads, which do not wait for the lock.
  bool no_unused_left();
  /// Space that no block is in, in gaps of `least` bytes and more.
  Gaps unused(std::uint64_t least);

 private:
  struct Pool {
    CUmemoryPool handle = nullptr;
    int device = 0;
    bool destroyed = false;
    unsigned growing = 0;  // threads that get it memory without the lock
    std::chrono::steady_clock::time_point short_until;  // there is none to be had
    // As the driver has them.
    std::uint64_t most = 0;  // bytes; 0: no limit
    std::uint64_t threshold = 0;
    bool opportunistic = true;  // other streams may have what has passed
    bool waits = true;          // and wait for what has not
    Amounts amounts;
    /// Of a label: small pieces, and others.
    std::map<std::pair<Label, bool>, PoolPieces::Shelf> shelves;
  };

  /// The next synchronisation has to look after it.
  static bool has_surplus(const Pool& pool) {
    // Where others may not have what has passed, they may once the program has waited for it.
    return pool.destroyed || pool.amounts.reserved > pool.threshold || !pool.opportunistic;
  }
  Pool* pool_of(CUmemoryPool handle);
  CUmemoryPool current(int device);
  std::optional<Pool> look_up(CUmemoryPool handle) const;
  void read_attributes(Pool& pool) const;
  PoolPieces::Shelf shelf_of(Pool& pool, const Label& label, bool small);
  std::optional<Address> take(Pool& pool, PoolPieces::Shelf shelf, std::uint64_t size,
                              StreamLines::Line& line);
  std::optional<Address> take_and_wait(PoolPieces::Shelf shelf, std::uint64_t size,
                                       const StreamLines::Line& line);
  CUresult add_memory(std::unique_lock<std::mutex>& lock, Pool& pool, PoolPieces::Shelf shelf,
                      const Label& label, std::uint64_t size);
  CUresult enter(Pool& pool, PoolPieces::Shelf shelf, const Segments::Made& made);
  std::uint64_t chunk_of(int device, std::uint64_t least) const;
  void used(Pool& pool, Address address);
  void given(Address address, PoolPieces::Point point);
  std::optional<CUresult> capture_refuses(CUstream stream, bool per_thread) const;
  void ask_lines();
  std::vector<AddressRange> take_free(Pool& pool, std::uint64_t least);
  std::vector<AddressRange> take_free_of_all(bool above_threshold);
  StreamLines::Passed passed();

  const Driver& driver_;
  LocalDevices& devices_;
  Gate& gate_;
  Memory& memory_;
  const Segments& maker_;

  static std::atomic<bool> surplus_;
  std::atomic<bool> any_{false};  // there has been a segment

  std::mutex mutex_;  // guards what follows; taken before BrokeredMemory's
  std::list<Pool> pools_;
  std::map<CUmemoryPool, Pool*> by_handle_;  // not destroyed
  std::vector<CUmemoryPool> current_;  // by device, as the driver said; nullptr: not asked yet
  std::map<PoolPieces::Shelf, Pool*> of_shelf_;
  PoolPieces pieces_;
  StreamLines lines_;
};

}  // namespace amem::shim
