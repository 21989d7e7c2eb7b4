// NcclOrder: what a thread of NCCL's is in the middle of, as its driver calls show.
//
// NCCL makes a buffer in one thread with these calls in this order, and maps one again with the
// last three (it asks for properties where it imports nothing):
//
// clang-format off
//   granularity ──▶ create or import ──▶ reserve ──▶ map      granularity, properties ──▶ reserve ──▶ map
//            may_create       buffer: its number    buffer: 0
// clang-format on
//
// - may_create: the thread was told the small granularity, and its next creation will be of a
//   buffer. That creation ends it, and so does any other question about granularity.
// - buffer: the thread's next reservation is for this buffer and is answered with its address. That
//   reservation ends it, and so do a creation, and a question about another granularity than the
//   one that NCCL asks about before it makes a buffer.
//
// Each thread has one. Plain data: a thread's last calls may come when its other variables have
// ended.
#pragma once

#include <cstdint>
#include <utility>

#include "shim/blocks/slab_sizes.h"

namespace amem::shim {

class NcclOrder {
 public:
  /// About granularity. `of_buffers`: as before a buffer; `small`: the answer is the small one.
  void asks(bool of_buffers, bool small) {
    if (!of_buffers) buffer_ = 0;
    may_create_ = small;
  }
  /// Something is being created. Whether the thread was just told the small granularity.
  bool creates() {
    buffer_ = 0;
    return std::exchange(may_create_, false);
  }
  /// It has a handle of the buffer, and no address yet.
  void has(std::uint64_t buffer) { buffer_ = buffer; }
  /// A range of addresses is being reserved. The number of the buffer that it is for; 0: none.
  std::uint64_t reserves() { return std::exchange(buffer_, 0); }

  SlabSizes::Row row;  // of buffers of one size

 private:
  bool may_create_ = false;
  std::uint64_t buffer_ = 0;
};

}  // namespace amem::shim
