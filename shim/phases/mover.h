// Mover: copies the bytes of allocations between a device and the broker's host pool.
//
// Owns this rank's view of the pool: each segment is imported and mapped once, and made accessible
// to a device when the rank begins to use that device, so that no pause pays for it. Copies
// run on streams of the mover's own, one per device: by the copy engine, or by kernels that leave
// out what is zero (shim/phases/sparse_copier.h). With AMEM_VERIFY=1 every piece gets a checksum
// before its memory goes, which it must still have when it has come back. Service thread only.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "common/driver.h"
#include "common/fd.h"
#include "shim/base/options.h"
#include "shim/base/timings.h"
#include "shim/driver/local_devices.h"
#include "shim/memory/memory.h"
#include "shim/phases/backups.h"
#include "shim/phases/copy_marks.h"
#include "shim/phases/sparse_copier.h"
#include "shim/scratch/scratch.h"

namespace amem::shim {

class Mover {
 public:
  /// `options` are read when a phase ends, and may be filled in until then.
  Mover(const Driver& driver, LocalDevices& devices, Memory& memory, Scratch& scratch,
        const Options& options)
      : driver_(driver),
        devices_(devices),
        memory_(memory),
        scratch_(scratch),
        options_(options),
        sparse_(driver, devices),
        marks_(driver, devices) {}

  /// A segment of the pool. Takes the descriptor; the pool's memory stays the broker's. One that is
  /// here already changes nothing; kInternal if that has another size. After an error the copies
  /// that need it fail with that, until the broker has sent it again.
  Status add_segment(const amem_v1_PoolSegment& segment, Fd fd);
  /// From now on copies from and to this device may come: makes what they need, and lets it reach
  /// every segment.
  Status prepare(int device);

  /// Of memory that is paused: what a program may read (shim/runtime/backup.h).
  Status read(CUdeviceptr address, std::uint64_t size, std::byte* out);
  Result<const void*> view(CUdeviceptr address, std::uint64_t size);
  Backups& backups() { return backups_; }

  /// The program has reset this device: what was made in its context has gone, the stream and the
  /// registrations of segments, too.
  void forget(int device);

  /// Queues a look at whole allocations for zeros.
  Status measure(const amem_v1_Measure& measure);
  /// Waits for all of them, also after an error. `bytes`: how many were looked at; what the kernels
  /// cannot serve is not in `looks`.
  Status finish_measure(std::uint64_t& bytes, std::vector<Look>& looks);
  /// Queues copies; errors come at once or with the finish.
  Status save(const amem_v1_Copies& copies);
  Status load(const amem_v1_Copies& copies);
  /// Queues the loading of a whole allocation from where this process has saved it; zeros where no
  /// save of it is known. It has come back, and its length is `size`.
  Status restore(std::uint64_t id, std::uint64_t size);
  /// Wait until all queued copies have ended, also after an error. `bytes`: how many went between
  /// device and pool. `stored`: what the broker cannot know, sparse pieces and checksums. `follow`:
  /// tells meanwhile how far they are.
  Status finish_save(std::uint64_t& bytes, std::vector<Piece>& stored,
                     const CopyMarks::Follow& follow = {});
  /// kDataLoss: what was loaded is not what was saved.
  Status finish_load(std::uint64_t& bytes, const CopyMarks::Follow& follow = {});
  /// Waits for whatever was queued; nobody wants to know what has come of it.
  Status give_up();
  /// Of what the finish has waited for last: from the first copy queued to the end of the last.
  const CallTime& copies() const { return copies_; }

 private:
  struct MappedSegment {
    CUdeviceptr address = 0;
    std::uint64_t size = 0;
    bool memfd = false;
    std::vector<int> reachable_from;  // device ordinals that have been granted access
    int registered_by = -1;           // memfd: the device in whose context it is registered
    CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, {0}};  // where it is, if it is no memfd
    bool readable = false;                               // by this process's own code, too
  };

  Result<MappedSegment> map_segment(const amem_v1_PoolSegment& message, const Fd& fd);
  Status grant(MappedSegment& segment, int device);
  /// What of the allocation need not be saved.
  const std::vector<Gap>* left_out(std::uint64_t id);
  /// Where the copy's bytes are, here and in the pool.
  Result<Piece> place(const amem_v1_Copy& copy);
  /// Where `length` bytes from `offset` on are here.
  Result<Piece> piece_of(std::uint64_t id, std::uint64_t offset, std::uint64_t length);
  Result<CUdeviceptr> pool_address(const amem_v1_Copy& copy, int device);
  struct SavedRange {
    Piece piece;
    std::uint64_t offset = 0;  // in the piece
    std::uint64_t size = 0;
  };
  /// What the range had, in order, readable for this process's own code.
  Result<std::vector<SavedRange>> saved_ranges(CUdeviceptr address, std::uint64_t size);
  Result<MappedSegment*> segment_at(CUdeviceptr pool);
  Status make_readable(CUdeviceptr pool);
  Result<CUstream> stream(int device);
  enum class Way : std::uint8_t { kSave, kLoad, kClear };
  Status copy(const Piece& piece, Way way);
  Status wait(const CopyMarks::Follow& follow = {});
  Status verify();

  const Driver& driver_;
  LocalDevices& devices_;
  Memory& memory_;
  Scratch& scratch_;
  const Options& options_;
  SparseCopier sparse_;
  CopyMarks marks_;
  Backups backups_;
  std::map<std::uint32_t, MappedSegment> segments_;
  std::map<std::uint32_t, Status> missing_;  // segments that could not be taken, and why
  std::map<int, CUstream> streams_;
  std::vector<int> prepared_;
  std::vector<Piece> pieces_;  // of the phase, whose checksums are to be taken
  std::uint64_t bytes_ = 0;
  std::optional<SteadyClock::time_point> copies_began_;
  CallTime copies_;
};

}  // namespace amem::shim
