// SparseCopier: saves and loads pieces of device memory by the kernels of shim/kernels, which move
// only blocks that are not zero, and takes checksums of pieces.
//
// Per device it owns a stream, the kernels and a table in pinned memory, all made when the device
// is prepared: a pause allocates nothing. A save has two steps: start() looks at the pieces, beside
// whatever the copy engine does meanwhile; store() decides and moves, or look() only tells. Where
// the kernels cannot be had (a driver without a compiler for PTX, or too old for it) it takes
// nothing, says so once, and the caller copies densely. Service thread only.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/driver.h"
#include "common/sparse.h"
#include "shim/copies/form_copier.h"
#include "shim/copies/group_launch.h"
#include "shim/driver/local_devices.h"
#include "shim/driver/own_memory.h"
#include "shim/scratch/fifos.h"

namespace amem::shim {

/// The kernels of shim/kernels/sparse.cu as the driver takes them: PTX text, embedded by the build.
extern const char kSparsePtx[];

/// What a scan has found of an allocation: a mask for each group of blocks.
struct Look {
  std::uint64_t id = 0;
  std::vector<std::uint32_t> masks;
};

class SparseCopier final : public FormCopier {
 public:
  SparseCopier(const Driver& driver, LocalDevices& devices) : driver_(driver), devices_(devices) {}
  ~SparseCopier() override;

  /// Loads the kernels and makes what they need. Where there was no memory for that it is tried
  /// again once in each phase that copies. REQUIRES: the device is in use.
  void prepare(int device) override;
  /// The program has reset this device: all of it went with the context, or is idle.
  void forget(int device) override;

  /// Remembers a piece for the next start(). False: the device has no kernels, the piece is not
  /// aligned for them, or there is no space left to look at it.
  bool offer(const Piece& piece) override;
  /// Queues a look at what was offered since the last call.
  Status start() override;
  /// Waits for the looks and tells what they have found. REQUIRES: whole allocations were offered.
  Status look(std::vector<Look>& looks);
  /// Waits for the looks; queues the sparse copies. Pieces that are not sparse are left to the
  /// caller. kAborted: one does not fit in its space; of this device none has been queued.
  Status store(std::vector<Piece>& saved) override;

  /// kFailedPrecondition: a device has no kernels.
  Status load(std::span<const Piece> pieces) override;
  void read(const Piece& piece, const std::byte* pool, std::uint64_t offset, std::uint64_t length,
            std::byte* out) const override;

  /// Reads the 8-byte words at these addresses, in order, and waits for them. `words` becomes as
  /// long. kFailedPrecondition: the device has no kernels. kResourceExhausted: what was offered has
  /// taken all space.
  Status read(int device, std::span<const Address> at, std::vector<std::uint64_t>& words);

  /// The phase ends: waits for all that was queued. What was offered and not stored is forgotten.
  Status finish() override;

  /// Sets the checksums of the pieces from what is on their devices now, and waits for that; of
  /// those that the kernels cannot serve it is 0.
  Status checksums(std::span<Piece> pieces);

 private:
  struct Device {
    LoadedKernels kernels;
    CUfunction scan = nullptr;
    CUfunction gather = nullptr;
    CUfunction scatter = nullptr;
    CUfunction checksum = nullptr;
    CUfunction words = nullptr;
    PinnedMemory table;        // an Entry, or a sum, for each group of the pieces
    std::uint32_t space = 0;   // entries of the table
    std::uint32_t in_use = 0;  // of these
    std::vector<Listed> offered;
    std::size_t scanned = 0;  // of these, the first
  };
  enum class Kernel : std::uint8_t { kScan, kGather, kScatter, kChecksum };

  /// What a scan has to look at: groups that lie in gaps are nothing, which the table then says.
  static std::vector<Listed> without_gaps(const Device& device, std::span<const Listed> listed);
  /// The looks at what was offered have ended, and what was offered is forgotten.
  Status scanned(int ordinal, Device& device, std::vector<Listed>& listed);
  CUresult make(int ordinal, Device& device);
  void await_kernels(int ordinal, const Device& device);
  bool serves(const Piece& piece) const;
  /// What the scan of a piece has found.
  static std::span<sparse::Entry> entries(const Device& device, const Listed& one);
  static Status decide(const Device& device, std::vector<Listed>& listed);
  /// In as few launches as the pieces allow.
  Status launch(Kernel kernel, int ordinal, const Device& device, std::span<const Listed> listed);
  /// REQUIRES: the device's context is current.
  CUresult launch_all(Kernel kernel, const Device& device, std::span<const Listed> listed);
  /// Reads words by a list at `first` of the table. REQUIRES: as launch_all(); there is space.
  CUresult launch_words(const Device& device, std::uint32_t first, std::uint32_t count);
  Status wait(int ordinal, const Device& device);

  const Driver& driver_;
  LocalDevices& devices_;
  LoadAttempts attempts_;
  std::map<int, Device> ready_;
  bool warned_ = false;
};

}  // namespace amem::shim
