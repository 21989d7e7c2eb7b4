// Scratch: the bytes that a pause need not save, because they hold nothing: space that no buffer is
// in, and what NCCL's receive buffers leave behind between collectives, where that is asked for. A
// resume restores them as zeros, or as they were where leaving them out saves nothing.
//
// In a proof run a resume restores NCCL's as a pattern that no collective may read: NaN in every
// floating-point type, and no flag of LL128's. Only of buffers in slabs. Service thread, except
// of_nccl().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/driver.h"
#include "shim/base/options.h"
#include "shim/blocks/heap.h"
#include "shim/blocks/slabs.h"
#include "shim/blocks/small_blocks.h"
#include "shim/driver/local_devices.h"
#include "shim/driver/own_memory.h"
#include "shim/memory/memory.h"
#include "shim/scratch/fifos.h"

namespace amem::shim {

/// What is done with a NCCL of this version (ncclGetVersion's number; 0: it does not say).
struct ScratchRule {
  bool drop = false;
  bool prove = false;
  std::string refusal;  // why it is not dropped, although that was asked for
};
ScratchRule scratch_rule(NcclScratch asked, int version);

class Scratch {
 public:
  /// Reads 8-byte words of a device, by their addresses.
  using ReadWords =
      std::function<Status(int device, std::span<const Address> at, std::vector<std::uint64_t>&)>;

  Scratch(const Driver& driver, LocalDevices& devices, Memory& memory, Slabs& slabs, Heap& heap,
          const Options& options)
      : driver_(driver),
        devices_(devices),
        memory_(memory),
        slabs_(slabs),
        heap_(heap),
        options_(options) {}

  /// NCCL, which has this code, allocates: says once what is done with its version. Any thread of
  /// the program's; looks into the library that the caller is in.
  void of_nccl(const void* code);

  /// A pause begins: what was found in the last one counts no longer.
  void begin();
  /// Returns the parts of this allocation that need not be saved; nullptr: none. Good until
  /// begin(). The first call in a pause looks at NCCL's tables and at what is free: what the
  /// program frees later in the pause is saved. REQUIRES: the gate is shut, so that no space is
  /// taken; nothing runs on the devices of the group, and since begin() nothing has been released
  /// before the first call.
  const std::vector<Gap>* left_out(std::uint64_t id, const ReadWords& read);
  /// In a proof run: fills what was left out, and is here again, with the pattern. Waits for that.
  Status spoil();
  /// The program has reset this device.
  void forget(int device);

 private:
  struct SlabRange {
    Address address = 0;
    std::uint64_t size = 0;
    int device = 0;
    std::uint64_t id = 0;  // of the slab
  };

  void look(const ReadWords& read);
  Status find(std::vector<OwnBuffer> buffers, const ReadWords& read);
  /// Its device has access to it.
  bool readable(const OwnBuffer& buffer);
  /// Returns what the tables among these buffers say, by address.
  Result<std::vector<Fifo>> fifos(const std::vector<OwnBuffer>& buffers);
  /// The bytes of these ranges, one behind the other, until the next call.
  Result<std::span<const std::byte>> fetch(const std::vector<SlabRange>& ranges);
  /// Queues it. REQUIRES: the allocation is here.
  Status fill(std::uint64_t id);
  Status wait();
  Result<CUstream> stream(int device);

  const Driver& driver_;
  LocalDevices& devices_;
  Memory& memory_;
  Slabs& slabs_;
  Heap& heap_;
  const Options& options_;
  std::atomic<bool> seen_{false};
  std::atomic<bool> drop_{false};
  std::atomic<bool> prove_{false};
  std::optional<Gaps> found_;         // in this pause; nothing: nobody has looked yet
  Gaps of_nccl_;                      // of these, in NCCL's receive buffers
  std::set<std::uint64_t> left_out_;  // allocations with such, that were asked about
  std::map<int, CUstream> streams_;
  PinnedMemory host_;
  std::uint64_t space_ = 0;  // bytes of host_
};

}  // namespace amem::shim
