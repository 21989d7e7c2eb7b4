// BlockHasher: takes hashes of the blocks of pieces on their devices (common/block_hash.h), copies
// scattered blocks to the pool, and compares pieces with their copies in the pool byte for byte.
//
// Per device it owns a stream, the kernels, a key, and a table in pinned memory, all made when the
// device is prepared: a pause allocates nothing. Each device of each process has a key of its own,
// of random bits of the system. Where the kernels cannot be had it serves nothing, and the caller
// copies everything. Service thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "common/block_hash.h"
#include "common/driver.h"
#include "shim/copies/group_launch.h"
#include "shim/driver/local_devices.h"
#include "shim/driver/own_memory.h"

namespace amem::shim {

/// The kernels of shim/kernels/block_hash.cu as the driver takes them: PTX text, embedded by the
/// build.
extern const char kBlockHashPtx[];

class BlockHasher {
 public:
  BlockHasher(const Driver& driver, LocalDevices& devices) : driver_(driver), devices_(devices) {}
  ~BlockHasher();

  /// Loads the kernels and makes what they need, once. Where there is no memory for that, it is
  /// tried again in the next phase. REQUIRES: the device is in use.
  void prepare(int device);
  /// Ends the phase.
  void finish() { attempts_.end_phase(); }
  /// The program has reset this device: all of it went with the context.
  void forget(int device) {
    ready_.erase(device);
    attempts_.forget(device);
  }

  bool serves(const Piece& piece) const;
  /// The hashes of the pieces' blocks as they are now, in order, and waits for that.
  /// REQUIRES: it serves all of them.
  Status hash(std::span<const Piece> pieces, std::vector<std::vector<block_hash::Hash>>& hashes);
  /// Copies the blocks of each piece that its masks name (masks_of()) to their places in the pool,
  /// and waits for that. REQUIRES: it serves all of them; masks for each.
  Status copy(std::span<const Piece> pieces, std::span<const std::vector<std::uint32_t>> masks);
  /// So many of these blocks are zero that a sparse copy pays.
  bool many_zeros(int device, std::span<const block_hash::Hash> hashes) const;
  /// Whether the pool has the bytes of each piece, and waits for that. kDataLoss names the first
  /// block that differs. REQUIRES: it serves all of them; all copies have ended.
  Status compare(std::span<const Piece> pieces);

 private:
  /// Groups of the table, of 512 bytes each: a launch reads so many times 2 MiB.
  static constexpr std::uint32_t kSpace = 8192;

  struct Device {
    LoadedKernels kernels;
    CUfunction key = nullptr;
    GroupKernel hash{nullptr, block_hash::kThreads};
    GroupKernel compare{nullptr, block_hash::kThreads};
    GroupKernel copy{nullptr, sparse::kCopyThreads, sparse::kCopyParts};
    PinnedMemory table;
    block_hash::Hash zero{};  // of a whole block of zeros
  };
  /// Groups of a piece that one launch serves.
  struct Part {
    std::size_t piece = 0;
    std::uint64_t first_group = 0;
    Listed listed;
  };

  using Visit = std::function<void(const Device&, const Part&)>;

  CUresult make(int ordinal, Device& device);
  static std::span<sparse::Entry> entries(const Device& device, const Part& part);
  /// Serves all groups of the pieces. Calls `fill` with each part before the kernel runs, when the
  /// table has zeros for it, and `done` when the table has what the kernel has written.
  Status run(GroupKernel Device::*kernel, std::span<const Piece> pieces, const Visit& fill,
             const Visit& done);
  Status wait(int ordinal, const Device& device);

  const Driver& driver_;
  LocalDevices& devices_;
  LoadAttempts attempts_;
  bool logged_ = false;  // that kernels are missing
  std::map<int, Device> ready_;
};

}  // namespace amem::shim
