// Fifos: NCCL's receive buffers of peer-to-peer connections, found in its own tables.
//
// NCCL's device.h and comm.h have the layout, the same in 2.27.5, 2.28.9, 2.29.7 and 2.30.7: a
// table has a ncclDevChannelPeer for each rank, with two connections to send by and two to receive
// by (ncclConnInfo). A receive buffer begins with a page of counters (ncclRecvMem). The buffers of
// the protocols LL, LL128 and Simple follow. Nothing is taken on trust: a connection counts only
// where all its addresses and sizes fit one buffer. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shim/blocks/slab_book.h"

namespace amem::shim {

/// One that a connection receives by, of memory that the sender writes to. Offsets are from the
/// buffer's beginning on.
struct Fifo {
  static constexpr std::uint64_t kSlots = 8;  // NCCL_STEPS
  static constexpr std::size_t kWords = 1 + 2 * kSlots;

  OwnBuffer buffer;
  std::uint64_t ll = 0;  // where LL begins, behind the counters
  std::uint64_t ll_slot = 0;
  std::uint64_t ll128 = 0;
  std::uint64_t ll128_slot = 0;
  std::uint64_t step = 0;  // the next one that this end will read

  /// Bytes at its beginning that must be kept. LL's flags are steps modulo 2^32, so memory of zeros
  /// has the flag of step 2^32 - 1. In half of the steps before it NCCL itself writes all flags of
  /// LL anew (NCCL_LL_CLEAN_MASK), and from there on LL is kept.
  std::uint64_t live_bytes() const {
    return static_cast<std::uint32_t>(step) < kLlAnew ? ll : ll128;
  }

  /// Where the words are that say whether the sender is ahead: how far it is with Simple; and the
  /// flags that LL, and then LL128, have in the first line of each slot, in the order of steps.
  std::array<std::uint64_t, kWords> looks() const;
  /// With these words it is not. A send that has returned may have left its data here although
  /// nothing runs. REQUIRES: kWords of them.
  bool empty(std::span<const std::uint64_t> words) const;

 private:
  static constexpr std::uint32_t kLlAnew = 0x7ffffff8;
};

/// Buffers of no more bytes are read as tables: one for thousands of ranks is smaller, and NCCL's
/// receive buffers are larger.
inline constexpr std::uint64_t kMostTable = 1 << 20;

/// The receive buffers among `buffers` that the tables in `bytes`, the contents of one of NCCL's
/// smaller buffers, name. A buffer may be named more than once. `buffers`: by address.
std::vector<Fifo> find_fifos(std::span<const OwnBuffer> buffers, std::span<const std::byte> bytes);

}  // namespace amem::shim
