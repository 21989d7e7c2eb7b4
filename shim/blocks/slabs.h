// Slabs: NCCL's allocations share physical memory.
//
// NCCL asks for hundreds of small buffers, pads each to the driver's 2 MiB, and gets a handle, a
// mapping and often a peer's import for each; and what a pause costs besides the copies goes by
// handles. So NCCL is told a smaller granularity, and its buffers lie in slabs: one
// brokered allocation, mapped once in the owner and once in each peer, at addresses of the shim's.
// A buffer has a handle of its own and lies where its slab lies: the reservation that NCCL makes
// for it is answered with that address.
//
// This rests on the order in which NCCL makes a buffer (NcclOrder). What asks for the recommended
// granularity (ncclMemAlloc, symmetric memory, NVLS) is never packed. A buffer that turns out to be
// used otherwise moves to an allocation of its own while nobody knows its address yet; from then on
// nothing is packed, and the log says so once.
//
// Any thread; the caller is inside the gate where a function may talk to the broker or unmap a slab
// (create, import, map, export_ticket, own_handle, release, free_address). The lock is held over
// driver calls, never over a wait for the broker; it comes before BrokeredMemory's.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/driver.h"
#include "common/ticket.h"
#include "shim/blocks/slab_book.h"
#include "shim/blocks/small_blocks.h"
#include "shim/driver/local_devices.h"
#include "shim/memory/memory.h"

namespace amem::shim {

class Slabs {
 public:
  /// The granularity that NCCL is told. None of its buffers needs to be better aligned.
  static constexpr std::uint64_t kGranularity = 4096;

  /// `size`: of the largest slab, bytes; 0: none are made; nothing: kMost, and less on a device
  /// where that would be more than a kLeastShare-th of the memory.
  Slabs(const Driver& driver, LocalDevices& devices, Memory& memory,
        const std::optional<std::uint64_t>& size)
      : driver_(driver), devices_(devices), memory_(memory), size_(size) {}

  static constexpr std::uint64_t kMost = 384ULL << 20U;  // the driver is slow with 512 MiB and more
  static constexpr std::uint64_t kLeastShare = 256;

  /// Handles of buffers are told apart from allocations' and the driver's by their top bits.
  static constexpr std::uint64_t kHandleTag = 0xa3e4'0000'0000'0000;

  // ---- calls of NCCL; "nothing": as if there were no slabs ----
  std::optional<std::size_t> granularity(const CUmemAllocationProp* prop,
                                         CUmemAllocationGranularity_flags option);
  std::optional<CUresult> create(CUmemGenericAllocationHandle* handle, std::size_t size,
                                 const CUmemAllocationProp& prop, const Label& label);
  /// Also of whole allocations, with a handle of the allocation's.
  CUresult import(CUmemGenericAllocationHandle* handle, const Ticket& ticket);
  std::optional<CUresult> reserve(CUdeviceptr* address, std::size_t size, std::size_t alignment,
                                  CUdeviceptr wish, unsigned long long flags);
  /// REQUIRES, where contains(address): the caller is inside the gate, for a slab may go with it.
  std::optional<CUresult> free_address(CUdeviceptr address, std::size_t size);
  /// The address lies in a slab.
  bool contains(CUdeviceptr address);

  /// The contents of the slabs made here. What a resume restores where no buffer is does not
  /// matter, if it is not another allocation's: a buffer that gets used space is zeroed first, and
  /// space that has never been used is zero, also after a resume. What a peer was given and its
  /// owner has freed holds nothing that the peer reads.
  struct Contents {
    std::vector<OwnBuffer> buffers;  // by address
    Gaps unused;                     // space that no buffer is in, `least` bytes and more each
  };
  Contents contents(std::uint64_t least);

  // ---- calls with a buffer's handle ----
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult export_ticket(int* fd, CUmemGenericAllocationHandle handle);
  CUresult properties(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle);
  /// Also with an allocation's handle.
  CUresult map(CUdeviceptr address, std::size_t size, std::size_t offset,
               CUmemGenericAllocationHandle handle, unsigned long long flags);
  /// The allocation's handle of a buffer that has moved, or can.
  CUresult own_handle(CUmemGenericAllocationHandle* own, CUmemGenericAllocationHandle handle);
  Handles::TraceView trace_view(CUmemGenericAllocationHandle handle);

  // ---- calls with an address; nothing: it lies in no slab ----
  std::optional<CUresult> retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address);
  std::optional<CUresult> unmap(CUdeviceptr address, std::size_t size);
  std::optional<CUresult> set_access(CUdeviceptr address, std::size_t size,
                                     const CUmemAccessDesc* desc, std::size_t count);
  std::optional<CUresult> address_range(CUdeviceptr* base, std::size_t* size, CUdeviceptr address);
  /// A device knows what is there, in slabs or not: Pins::pin(), and nothing more is put into a
  /// slab that cannot leave.
  Result<Pins::Pinned> pin(CUdeviceptr address, std::size_t size, amem_v1_PinReason reason);

  /// From now on NCCL is told the driver's granularity; the log says so, and why, once. Any thread.
  void stop_packing(const std::string& why);

 private:
  static std::uint64_t number_of(CUmemGenericAllocationHandle handle) {
    return handle & ~AllocationTable::kTagMask;
  }
  SlabBuffer* find(CUmemGenericAllocationHandle handle);
  CUmemGenericAllocationHandle add_buffer(SlabBuffer buffer);
  std::optional<CUresult> adopt(CUmemGenericAllocationHandle* handle, const Ticket& ticket);
  std::uint64_t whole(std::uint64_t size);
  bool asked_for(const SlabBuffer& buffer, std::uint64_t size);
  std::uint64_t most(int device) const;
  CUresult add_slab(const SmallBlocks::Pool& pool, std::uint64_t buffer_size);
  CUresult make_slab(const SmallBlocks::Pool& pool, std::uint64_t size);
  CUresult add_imported(const Ticket& ticket, CUmemGenericAllocationHandle handle,
                        const Handles::Known& known);
  CUresult zero(Address address, std::uint64_t size, int device);
  std::optional<Address> take(const SmallBlocks::Pool& pool, std::uint64_t size, bool* dirty);
  void drop_if_unused(std::unique_lock<std::mutex>& lock, std::uint64_t number);
  void give_space(std::unique_lock<std::mutex>& lock, Address address, bool reusable);
  CUresult move(std::unique_lock<std::mutex>& lock, CUmemGenericAllocationHandle handle);

  const Driver& driver_;
  LocalDevices& devices_;
  Memory& memory_;
  const std::optional<std::uint64_t>& size_;
  std::atomic<bool> packing_{true};
  std::atomic<bool> told_{false};  // somebody knows the small granularity, or has a buffer

  std::mutex growing_;  // one slab is made or imported at a time; before mutex_, over the broker
  std::mutex mutex_;    // guards what follows
  SlabBook book_;
  std::map<Address, std::uint64_t> rounded_;  // reservations made larger for the driver → its size
};

inline bool is_buffer(CUmemGenericAllocationHandle handle) {
  return (handle & AllocationTable::kTagMask) == Slabs::kHandleTag;
}

}  // namespace amem::shim
