// Mover: copies the bytes of allocations between a device and the broker's host pool, each piece by
// the copier of its form (form_copier.h). With AMEM_VERIFY=1 every piece gets a checksum before its
// memory goes, which it must still have after the resume. Service thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/driver.h"
#include "shim/base/options.h"
#include "shim/base/timings.h"
#include "shim/copies/backups.h"
#include "shim/copies/block_hasher.h"
#include "shim/copies/block_hashes.h"
#include "shim/copies/copiers.h"
#include "shim/copies/pool_view.h"
#include "shim/driver/local_devices.h"
#include "shim/memory/memory.h"
#include "shim/scratch/scratch.h"

namespace amem::shim {

class Mover {
 public:
  /// `options` are read when a phase ends, and may be filled in until then.
  Mover(const Driver& driver, LocalDevices& devices, Memory& memory, Scratch& scratch,
        const Options& options)
      : memory_(memory),
        scratch_(scratch),
        options_(options),
        pool_(driver, devices),
        copiers_(driver, devices),
        reader_(memory, backups_, pool_, copiers_),
        hasher_(driver, devices) {}

  PoolView& pool() { return pool_; }
  Backups& backups() { return backups_; }
  BackupReader& reader() { return reader_; }
  BlockHashes& hashes() { return hashes_; }

  /// From now on copies from and to this device may come: makes what they need.
  /// `hashes`: pauses may ask for hashes of blocks.
  Status prepare(int device, bool hashes);
  /// The program has reset this device: what was made in its context has gone.
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
  /// save of it is known. REQUIRES: it is mapped again, and its length is `size`.
  Status restore(std::uint64_t id, std::uint64_t size);
  /// Wait until all queued copies have ended, also after an error. `bytes`: how many went between
  /// device and pool. `stored`: what the broker cannot know, encoded forms and checksums.
  /// `follow`: tells meanwhile how far they are. Allocations that have been saved may be unmapped
  /// then (Residency::unmap_ahead()), also after an error.
  Status finish_save(std::uint64_t& bytes, std::vector<Piece>& stored,
                     CopyMarks::Follow follow = {});
  /// kDataLoss: what was loaded is not what was saved.
  Status finish_load(std::uint64_t& bytes, const CopyMarks::Follow& follow = {});
  /// Something is queued that no finish has waited for.
  bool under_way() const { return copies_began_.has_value(); }
  /// Waits for whatever was queued; nobody wants to know what has come of it.
  Status give_up();
  /// Returns the time of the copies that the finish has waited for last: from the first copy queued
  /// to the end of the last.
  const CallTime& copies() const { return copies_; }

 private:
  /// A piece that this save saves.
  struct Saving {
    enum class Way : std::uint8_t {
      kWhole,   // the copier of its form does it
      kParts,   // only what has changed, by the copy engine
      kBlocks,  // only what has changed, by a kernel
    };
    Piece piece;
    Way way = Way::kWhole;
    BlockHashes::Hashes hashes = {};    // of its bytes as they are now; none: not taken
    std::vector<ByteRun> changed = {};  // since an earlier save put them at the same place
  };

  /// Returns the parts of the allocation that need not be saved.
  const std::vector<Gap>* left_out(std::uint64_t id);
  /// Where the copy's bytes are, here and in the pool.
  Result<Piece> place(const amem_v1_Copy& copy, SegmentView::Use use);
  /// Where `length` bytes from `offset` on are here.
  Result<Piece> piece_of(std::uint64_t id, std::uint64_t offset, std::uint64_t length);
  Status load(std::span<const Piece> pieces);
  /// Finds out what has changed of pieces whose places have what an earlier save has put there, and
  /// queues that. REQUIRES: `saving_` has no others.
  Status save_changed();
  /// How the rest of such a piece is saved. Its old hashes go. kWhole: a copier has it.
  Saving::Way way_of(Saving& saving);
  /// Takes the hashes that are wanted and not there, and waits for that.
  Status hash();
  /// Whether the pool has what was found unchanged.
  Status compare();
  /// Unmaps what this save has copied or need not copy while the copies of the rest run: what to do
  /// when they have come so far. Nothing: none does.
  CopyMarks::Reached unmap_ahead();
  Status wait(const CopyMarks::Follow& follow = {});
  /// The phase has ended.
  void end_phase(std::uint64_t& bytes);
  Status verify();

  Memory& memory_;
  Scratch& scratch_;
  const Options& options_;
  PoolView pool_;
  Copiers copiers_;
  Backups backups_;
  BackupReader reader_;
  BlockHasher hasher_;
  BlockHashes hashes_;
  std::vector<Piece> to_verify_;  // of the phase
  std::vector<Saving> saving_;    // of the save; what copiers were offered, from finish_save() on
  std::uint64_t epoch_ = 0;       // of the save
  std::uint64_t bytes_ = 0;
  std::optional<SteadyClock::time_point> copies_began_;
  CallTime copies_;
};

}  // namespace amem::shim
