// Block hashes: how amem finds out which blocks of 64 KiB have changed since an earlier pause.
//
// A hash of a block has 128 bits and depends on a secret key. Two different blocks have the same
// hash with a probability of at most 2^-115 over the choice of the key, whatever they contain:
//   1. NH (Black et al., UMAC), with 32-bit words and four rows of a Toeplitz key, reduces a block
//      to four 64-bit sums. Different blocks collide in all four with at most 2^-128.
//   2. Two polynomials modulo 2^61 - 1, each with its own key, reduce these 256 bits to twice 61.
//      Different sums collide in both with at most (8 / (2^61 - 1))^2 < 2^-115.999.
// The last block of a piece may be shorter. Only hashes of blocks of one length are compared.
//
// Plain constants, structs and pure functions. This header is also compiled for the GPU.
#pragma once

#include <stdint.h>

#include "common/sparse.h"

namespace amem::block_hash {

/// `high` is never 0, so a Hash of zeros says that none was taken.
struct Hash {
  uint64_t low;
  uint64_t high;

  friend bool operator==(const Hash& a, const Hash& b) {
    return a.low == b.low && a.high == b.high;
  }
};

/// 16 bytes of a block, or of the key.
struct Word128 {
  uint32_t word[4];
};

constexpr uint32_t kRows = 4;
constexpr uint32_t kUnitsPerBlock = sparse::kBlock / sizeof(Word128);
/// Row r of the key begins 2 * r words later than row 0, so the last one ends 2 units later.
constexpr uint32_t kKeyUnits = kUnitsPerBlock + 2;
constexpr uint64_t kPrime = (1ULL << 61) - 1;

/// Random bits: all of `unit`. `point` has random numbers from 1 to kPrime - 1.
struct alignas(sizeof(Word128)) Key {
  Word128 unit[kKeyUnits];
  uint64_t point[2];
};

/// The sums of NH, of a part of a block. Parts may be summed in any order.
struct Sums {
  uint64_t row[kRows];
};

/// The one parameter of the kernel that stores the key in the module: its address.
struct SetKey {
  uint64_t key;
};

/// The kernels of shim/kernels/block_hash.cu. A hash or comparison has sparse::Launch as its
/// parameter, and each thread block serves a group of blocks.
///   key      stores the key
///   hash     writes the hashes of each group: kBlocksPerGroup of them, at Launch::entries
///   compare  compares the ranges with their copies in the pool, byte for byte; writes each group's
///            sparse::Entry::mask: bit i: block i differs
///   copy     takes the same masks; copies the blocks that they name to their places in the pool.
///            sparse::kCopyParts thread blocks serve a group
constexpr char kKeyKernel[] = "amem_block_key";
constexpr char kHashKernel[] = "amem_block_hash";
constexpr char kCompareKernel[] = "amem_block_compare";
constexpr char kCopyKernel[] = "amem_block_copy";
constexpr uint32_t kThreads = 1024;  // of hash and compare: a warp for each block of the group
constexpr uint32_t kKeyThreads = 256;

/// Adds unit `index` of a block. `key`: the key's units `index`, `index` + 1 and `index` + 2.
constexpr AMEM_GPU_TOO void add(Sums& sums, const Word128& unit, const Word128& key0,
                                const Word128& key1, const Word128& key2) {
  const uint32_t key[10] = {key0.word[0], key0.word[1], key0.word[2], key0.word[3], key1.word[0],
                            key1.word[1], key1.word[2], key1.word[3], key2.word[0], key2.word[1]};
  for (uint32_t row = 0; row < kRows; ++row) {
    const uint32_t a = unit.word[0] + key[2 * row];
    const uint32_t b = unit.word[1] + key[2 * row + 1];
    const uint32_t c = unit.word[2] + key[2 * row + 2];
    const uint32_t d = unit.word[3] + key[2 * row + 3];
    sums.row[row] += uint64_t{a} * b + uint64_t{c} * d;
  }
}

__extension__ typedef unsigned __int128 Product;

/// a * b modulo kPrime; of numbers below it.
constexpr AMEM_GPU_TOO uint64_t multiply(uint64_t a, uint64_t b) {
  const Product product = static_cast<Product>(a) * b;
  const uint64_t folded =
      (static_cast<uint64_t>(product) & kPrime) + static_cast<uint64_t>(product >> 61);
  return folded >= kPrime ? folded - kPrime : folded;
}

constexpr AMEM_GPU_TOO uint64_t polynomial(const Sums& sums, uint64_t point) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < 2 * kRows; ++i) {
    value += static_cast<uint32_t>(sums.row[i / 2] >> (i % 2 * 32));
    value = multiply(value >= kPrime ? value - kPrime : value, point);
  }
  return value;
}

/// Of the sums of a whole block. The uppermost bit says that it was taken.
constexpr AMEM_GPU_TOO Hash finish(const Sums& sums, const uint64_t (&point)[2]) {
  return {polynomial(sums, point[0]), polynomial(sums, point[1]) | 1ULL << 63};
}

}  // namespace amem::block_hash
