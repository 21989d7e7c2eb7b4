// Fifos: NCCL's receive buffers of peer-to-peer connections, found in its own tables.
//
// The layout is that of NCCL's device.h and comm.h, the same in 2.27.5, 2.28.9, 2.29.7 and 2.30.7:
// a table has a ncclDevChannelPeer for each rank, with two connections to send by and two to
// receive by (ncclConnInfo). A receive buffer begins with a page of counters (ncclRecvMem). The
// buffers of the protocols LL, LL128 and Simple follow. Nothing is taken on trust: a connection
// counts only where all its addresses and sizes fit one buffer. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shim/blocks/slab_book.h"

namespace amem::shim {

/// Bytes of an allocation that need not be saved.
struct Gap {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// One that a connection receives by, of memory that the sender writes to.
struct Fifo {
  OwnPiece piece;
  /// Bytes at its beginning that must be kept: the counters and LL, whose flags lie in the data.
  std::uint64_t kept = 0;
  /// Bytes of each of LL128's slots, of which the first begins behind what is kept.
  std::uint64_t slot = 0;
  /// The next step that this end will read.
  std::uint64_t step = 0;

  static constexpr std::uint64_t kSlots = 8;  // NCCL_STEPS
  /// Which slot that step is in.
  std::uint64_t next_slot() const { return step % kSlots; }
  /// Where LL128's flag of that slot's step is, from the buffer's beginning on: a word in its first
  /// line. The buffer's first word is how far the sender is with Simple.
  std::uint64_t flag_at(std::uint64_t number) const { return kept + number * slot + 120; }

  /// With these two words, the flag being the next slot's: the sender is not ahead. A send that has
  /// returned may have left its data here although nothing runs.
  bool empty(std::uint64_t tail, std::uint64_t flag) const {
    return tail <= step && flag != step + 1;
  }
};

/// Buffers of no more bytes are read as tables: one for thousands of ranks is smaller, and NCCL's
/// receive buffers are larger.
inline constexpr std::uint64_t kMostTable = 1 << 20;

/// The receive buffers among `buffers` that the tables in `bytes`, the contents of one of NCCL's
/// smaller buffers, name. A buffer may be named more than once. `buffers`: by address.
std::vector<Fifo> find_fifos(std::span<const OwnPiece> buffers, std::span<const std::byte> bytes);

}  // namespace amem::shim
