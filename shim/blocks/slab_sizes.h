// SlabSizes: which buffers share slabs, and how large the next slab is.
//
// NCCL makes its large buffers in rows: as many of one size as a connection has channels, all for
// the same peer, then as many of another size for another. So large buffers share slabs with
// buffers of their size only, and a slab has space for as many as the last row had, less what this
// one has already: most long rows get slabs of their own, so a peer maps only the slabs that are
// for it, and little space is left over. Short rows share a slab: to map one more costs a peer more
// than to map what is for others, too. Small buffers share slabs of at most a quarter of all
// before, so that little is lost where there is little to pack.
//
// Pure bookkeeping, no lock: Slabs owns one and guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "shim/blocks/small_blocks.h"

namespace amem::shim {

class SlabSizes {
 public:
  using Pool = SmallBlocks::Pool;

  /// From this size on, in bytes, buffers have slabs of their own size.
  static constexpr std::uint64_t kLarge = 1ULL << 20U;
  /// Shorter rows tell nothing.
  static constexpr std::uint64_t kShortestRow = 4;
  /// Buffers of the first slab of a kind, whose row is not known yet.
  static constexpr std::uint64_t kFirst = 8;
  /// Rows share a slab up to this part of the largest, and up to what there is already. The first
  /// slab is no larger, either.
  static constexpr std::uint64_t kSharing = 3;

  /// Pool::block of such buffers.
  static std::uint64_t buffer_of(std::uint64_t size) { return size >= kLarge ? size : 0; }

  /// What a thread is in the middle of; its own. Plain: a thread's last calls may come when its
  /// other variables have ended.
  struct Row {
    std::size_t kind = 0;      // number of its kind of buffer; 0: none
    std::uint64_t length = 0;  // buffers
  };

  /// The thread is about to make a buffer; before next() for it.
  void count(const Pool& pool, Row& row);
  /// Bytes of a new slab for a buffer of `size` bytes, the last of the thread's `row`: a multiple
  /// of `unit`, and at most `most` unless the buffer is larger.
  std::uint64_t next(const Pool& pool, const Row& row, std::uint64_t size, std::uint64_t unit,
                     std::uint64_t most);
  void added(const Pool& pool, std::uint64_t bytes) { kinds_[number(pool)].bytes += bytes; }
  void gone(const Pool& pool, std::uint64_t bytes) { kinds_[number(pool)].bytes -= bytes; }

 private:
  struct BufferKind {
    std::uint64_t bytes = 0;  // of all slabs
    std::uint64_t row = 0;    // buffers of the last row, or of a longer one so far
  };
  std::size_t number(const Pool& pool);
  /// Returns the number of buffers, of this many bytes each, that a new slab of their kind gets
  /// space for.
  static std::uint64_t buffers(const BufferKind& kind, const Row& row, std::uint64_t size,
                               std::uint64_t shared);

  std::map<Pool, std::size_t> numbers_;
  std::vector<BufferKind> kinds_{1};  // by number; 0 is none
};

}  // namespace amem::shim
