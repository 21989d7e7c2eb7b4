// SparseCopier: saves and loads pieces of device memory by the kernels of shim/kernels, which move
// only blocks that are not zero, and takes checksums of pieces.
//
// Per device it owns a stream, the kernels and a table in pinned memory, all made when the device
// is prepared: a pause allocates nothing. A save has two steps: scan() looks at the pieces, beside
// whatever the copy engine does meanwhile; gather() decides and moves, or look() only tells. Where
// the kernels cannot be had (a driver without a compiler for PTX, or too old for it) it takes
// nothing, says so once, and the caller copies densely. Service thread only.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "common/driver.h"
#include "common/form.h"
#include "common/sparse.h"
#include "shim/driver/local_devices.h"
#include "shim/driver/pinned_memory.h"
#include "shim/scratch/fifos.h"

namespace amem::shim {

/// What a scan has found of an allocation: a mask for each group of blocks.
struct Look {
  std::uint64_t id = 0;
  std::vector<std::uint32_t> masks;
};

/// A piece of an allocation, where it is on a device and where its copy is in the pool.
struct Piece {
  std::uint64_t id = 0;
  std::uint64_t offset = 0;  // in the allocation
  std::uint64_t length = 0;  // bytes
  int device = -1;
  CUdeviceptr address = 0;
  CUdeviceptr pool = 0;
  std::uint64_t space = 0;     // of a save: bytes of the pool from there on; no more is written
  Form form = Form::kDense;    // as it lies in the pool, or as it is wished until that is decided
  std::uint64_t stored = 0;    // bytes of the copy
  std::uint64_t checksum = 0;  // of the piece's bytes; 0: none
  // Of the allocation: what is not zero, and counts as zero. Somebody else's; nullptr: nothing.
  const std::vector<Gap>* left_out = nullptr;
};

class SparseCopier {
 public:
  SparseCopier(const Driver& driver, LocalDevices& devices) : driver_(driver), devices_(devices) {}
  ~SparseCopier();

  /// Loads the kernels and makes what they need. Where there was no memory for that it is tried
  /// again once in each phase that copies. REQUIRES: the device is in use.
  void prepare(int device);
  /// The program has reset this device: all of it went with the context, or is idle.
  void forget(int device);

  /// Remembers a piece for the next scan(). False: the device has no kernels, the piece is not
  /// aligned for them, or there is no space left to look at it.
  bool offer(const Piece& piece);
  /// Queues a look at what was offered since the last call.
  Status scan();
  /// Waits for the looks and tells what they have found. REQUIRES: whole allocations were offered.
  Status look(std::vector<Look>& looks);
  /// Waits for the looks; queues the sparse copies. Gives back what was offered, `sparse` and
  /// `stored` set; pieces that are not sparse are left to the caller. kAborted: one does not fit in
  /// its space; of this device none has been queued.
  Status gather(std::vector<Piece>& decided);

  /// Queues loading of sparse copies. kFailedPrecondition: a device has no kernels.
  Status scatter(const std::vector<Piece>& pieces);

  /// Reads the 8-byte words at these addresses, in order, and waits for them. `words` becomes as
  /// long. kFailedPrecondition: the device has no kernels. kResourceExhausted: what was offered has
  /// taken all space.
  Status read(int device, std::span<const Address> at, std::vector<std::uint64_t>& words);

  /// The phase ends: waits for all that was queued. What was offered and not gathered is forgotten.
  Status finish();

  /// Sets the checksums of the pieces from what is on their devices now, and waits for that; of
  /// those that the kernels cannot serve it is 0.
  Status checksums(std::span<Piece> pieces);

 private:
  struct Place {
    Piece piece;
    std::uint32_t first_entry = 0;
  };
  struct Device {
    CUstream stream = nullptr;
    CUmodule module = nullptr;
    CUfunction scan = nullptr;
    CUfunction gather = nullptr;
    CUfunction scatter = nullptr;
    CUfunction checksum = nullptr;
    CUfunction words = nullptr;
    PinnedMemory table;        // an Entry, or a sum, for each group of the pieces
    std::uint32_t space = 0;   // entries of the table
    std::uint32_t in_use = 0;  // of these
    std::vector<Place> offered;
    std::size_t scanned = 0;  // of these, the first
  };
  enum class Kernel : std::uint8_t { kScan, kGather, kScatter, kChecksum };

  /// What a scan has to look at: groups that lie in gaps are nothing, which the table then says.
  static std::vector<Place> without_gaps(const Device& device, std::span<const Place> places);
  /// The looks at what was offered have ended, and what was offered is forgotten.
  Status scanned(int ordinal, Device& device, std::vector<Place>& places);
  CUresult make(int ordinal, Device& device);
  void settle(int ordinal, const Device& device);
  bool serves(const Piece& piece) const;
  /// What the scan of a piece has found.
  static std::span<sparse::Entry> entries(const Device& device, const Place& place);
  static Status decide(const Device& device, std::vector<Place>& places);
  /// In as few launches as the pieces allow.
  Status launch(Kernel kernel, int ordinal, const Device& device, std::span<const Place> places);
  /// REQUIRES: the device's context is current.
  CUresult launch_all(Kernel kernel, const Device& device, std::span<const Place> places);
  /// Reads words by a list at `first` of the table. REQUIRES: as launch_all(); there is space.
  CUresult launch_words(const Device& device, std::uint32_t first, std::uint32_t count);
  Status wait(int ordinal, const Device& device);

  const Driver& driver_;
  LocalDevices& devices_;
  std::set<int> tried_;      // what prepare() need not try again
  std::set<int> no_memory_;  // of these, in this phase
  std::map<int, Device> ready_;
  bool warned_ = false;
};

}  // namespace amem::shim
