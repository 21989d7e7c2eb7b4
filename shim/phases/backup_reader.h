// BackupReader: what a program may read of its own memory while that is paused
// (shim/runtime/backup.h), by the CPU, from the pool. Service thread only.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/status.h"
#include "shim/memory/memory.h"
#include "shim/phases/backups.h"
#include "shim/phases/copiers.h"
#include "shim/phases/pool_view.h"

namespace amem::shim {

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
  /// What the range had, in order, readable for this process's own code.
  Result<std::vector<SavedRange>> saved_ranges(CUdeviceptr address, std::uint64_t size);

  Memory& memory_;
  const Backups& backups_;
  PoolView& pool_;
  Copiers& copiers_;
};

}  // namespace amem::shim
