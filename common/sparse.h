// Sparse copies: the layout that the shim, its GPU kernels and the simulated driver share.
//
// A piece of device memory is looked at in blocks of 64 KiB. A sparse copy of it in the host pool
// holds an index and, from index_bytes() on, its non-zero blocks one after the other, in order; a
// block that is not there is zero. The index has one Entry for each group of 32 blocks. Sizes are
// bytes. Plain constants, structs and pure functions: this header is also compiled for the GPU.
//
// content() and save_sparse() decide whether a piece is saved sparsely and how much space it takes
// in the pool. The shim calls them when it saves, and the broker when it makes space for that, so
// both calculate the same.
#pragma once

#include <stdint.h>

#if defined(__CUDACC__)
#define AMEM_GPU_TOO __host__ __device__
#else
#define AMEM_GPU_TOO
#endif

namespace amem::sparse {

constexpr uint64_t kBlock = 64U << 10;
constexpr uint32_t kBlocksPerGroup = 32;
constexpr uint64_t kGroup = kBlock * kBlocksPerGroup;
/// The bytes that the kernels read and write at once: addresses and lengths must be multiples of
/// it.
constexpr uint64_t kUnit = 16;

/// Which blocks of a group are stored, and where.
struct Entry {
  uint32_t mask;   // bit i: block i is not zero
  uint32_t first;  // the slot of the first of these; the others follow it
};

/// One piece of memory for a kernel.
struct Range {
  uint64_t device;       // address of the bytes
  uint64_t pool;         // address of the copy; unused by scan and checksum
  uint64_t length;       // of the bytes; a multiple of kUnit, not 0
  uint32_t first_group;  // of the launch: the groups of the ranges before this one
  uint32_t first_entry;  // of the launch's entries: this range has groups() of them
};

constexpr uint32_t kMaxRanges = 127;  // a kernel's parameters are at most 4096 bytes

/// The one parameter of every kernel but words.
struct Launch {
  uint64_t entries;  // address; an Entry each, for the checksum kernel a uint64_t
  uint32_t ranges;
  uint32_t groups;  // of all ranges
  Range range[kMaxRanges];
};
static_assert(sizeof(Launch) <= 4096, "too large for a kernel's parameter");

/// The one parameter of words. The list lies in pinned memory of the host: `count` addresses of
/// 8-byte words on the device, and behind them space for what is read there.
struct Words {
  uint64_t list;  // address
  uint32_t count;
};

/// The kernels of shim/kernels/sparse.cu. Each thread block serves a group, or a part of one.
///   scan      writes each group's Entry::mask
///   gather    takes the entries, with `first` filled in; writes the copies, index and blocks
///   scatter   reads the copies; writes all bytes of the ranges
///   checksum  writes each group's sum of mixed words; a range's checksum is the sum of these
///   words     reads single words; each thread one
constexpr char kScanKernel[] = "amem_sparse_scan";
constexpr char kGatherKernel[] = "amem_sparse_gather";
constexpr char kScatterKernel[] = "amem_sparse_scatter";
constexpr char kChecksumKernel[] = "amem_sparse_checksum";
constexpr char kWordsKernel[] = "amem_sparse_words";

constexpr uint32_t kScanThreads = 1024;  // a warp for each block of the group
constexpr uint32_t kCopyThreads = 512;
constexpr uint32_t kWordsThreads = 256;
constexpr uint32_t kCopyParts = 4;  // thread blocks for each group, of gather and scatter

constexpr AMEM_GPU_TOO uint64_t blocks(uint64_t length) { return (length + kBlock - 1) / kBlock; }
constexpr AMEM_GPU_TOO uint64_t groups(uint64_t length) { return (length + kGroup - 1) / kGroup; }

/// Returns the size of the index, rounded up so that blocks begin where the link likes them to.
constexpr AMEM_GPU_TOO uint64_t index_bytes(uint64_t length) {
  constexpr uint64_t kAlign = 4096;
  return (groups(length) * sizeof(Entry) + kAlign - 1) / kAlign * kAlign;
}

/// A piece with no set form is saved sparsely if at most this share of its blocks is not zero.
/// Blocks cost the kernels a little more than bytes cost the copy engine.
constexpr uint64_t kSparsePercent = 60;

struct Content {
  uint64_t blocks = 0;  // of these are not zero
  uint64_t stored = 0;  // bytes of a sparse copy, index and blocks
};

/// Returns the content of a piece with so many blocks that are not zero; `last`: its last block is
/// one of them. REQUIRES: length > 0.
constexpr Content content(uint64_t length, uint64_t not_zero, bool last) {
  Content content{not_zero, index_bytes(length) + not_zero * kBlock};
  // The last block may be shorter; in order, it has the last slot.
  if (last) content.stored -= blocks(length) * kBlock - length;
  return content;
}

/// Whether to save the piece sparsely. `wanted`: not only where it pays, but wherever it is
/// shorter. A sparse copy is never longer than the piece, so that it fits where the dense one
/// would.
constexpr bool save_sparse(const Content& content, uint64_t length, bool wanted) {
  if (content.stored >= length) return false;
  return wanted || content.blocks * 100 <= blocks(length) * kSparsePercent;
}

/// Mixes a range's 8-byte word number `index`.
constexpr AMEM_GPU_TOO uint64_t mix(uint64_t word, uint64_t index) {
  uint64_t x = word + 0xd6e8feb86659fd93U + index * 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 32)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebU;
  return x ^ (x >> 32);
}

}  // namespace amem::sparse
