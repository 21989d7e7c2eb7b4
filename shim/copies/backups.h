// Backups: where in the pool this process's saves have put the bytes of allocations, for a program
// that reads them while its memory is paused.
//
// An entry is true while its allocation is paused: the broker leaves the bytes where they are until
// they have been loaded. The others are dropped when the gate opens. Service thread only.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "common/status.h"
#include "shim/copies/copiers.h"
#include "shim/copies/form_copier.h"
#include "shim/copies/pool_view.h"
#include "shim/memory/memory.h"

namespace amem::shim {

class Backups {
 public:
  /// A pause begins.
  void begin() { ++pauses_; }
  /// A pause or resume has ended. `paused`: whether an allocation is paused.
  void drop_others(const std::function<bool(std::uint64_t id)>& paused);
  /// How many have begun: what was read of one and the same pause fits together.
  std::uint64_t pauses() const { return pauses_; }
  /// A piece was saved so.
  void add(const Piece& piece) { pieces_[piece.id][piece.offset] = piece; }
  /// Some of it was saved here.
  bool any(std::uint64_t id) const { return pieces_.contains(id); }
  /// The pieces that a range of an allocation lies in, in order. None: not all of it was saved
  /// here.
  std::vector<Piece> find(std::uint64_t id, std::uint64_t offset, std::uint64_t length) const;

 private:
  std::map<std::uint64_t, std::map<std::uint64_t, Piece>> pieces_;  // by allocation and offset
  std::uint64_t pauses_ = 0;
};

/// What a program may read of its own memory while that is paused (shim/runtime/backup.h), by the
/// CPU, from the pool.
class BackupReader {
 public:
  BackupReader(Memory& memory, const Backups& backups, PoolView& pool, Copiers& copiers)
      : memory_(memory), backups_(backups), pool_(pool), copiers_(copiers) {}

  /// Errors of both: those of read_backup().
  Status read(CUdeviceptr address, std::uint64_t size, std::byte* out);
  /// Null: the bytes are not in one piece, or not as they were.
  Result<const void*> view(CUdeviceptr address, std::uint64_t size);

 private:
  struct SavedRange {
    Piece piece;
    std::uint64_t offset = 0;  // in the piece
    std::uint64_t size = 0;
  };
  /// Returns what the range had, in order, readable for this process's own code.
  Result<std::vector<SavedRange>> saved_ranges(CUdeviceptr address, std::uint64_t size);

  Memory& memory_;
  const Backups& backups_;
  PoolView& pool_;
  Copiers& copiers_;
};

}  // namespace amem::shim
