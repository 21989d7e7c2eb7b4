// Shortage: what an operator is told when the pool has no space even for what a look for zeros has
// left: how much is missing, whose bytes these are, and what would help. No remedy costs the job
// bytes, unless somebody has said that it can lose them. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace amem {

struct Shortage {
  struct Tag {
    std::uint64_t size = 0;    // of the memory that the pause keeps
    std::uint64_t stored = 0;  // bytes of the pool that it takes, in whole chunks
    bool cache = true;         // all of it is of regions that say that a pause may drop it
  };

  std::uint64_t missing = 0;  // bytes of the pool
  std::uint64_t free = 0;     // of the owner's part, like `total`
  std::uint64_t total = 0;
  std::uint64_t of_others = 0;  // of the pool, in segments of other owners
  std::uint64_t not_seen = 0;   // bytes that ranks could not look at
  std::map<std::string, Tag> tags;
  std::map<std::string, std::uint64_t> others;  // other groups with bytes in the pool

  // ---- what would do ----
  std::uint64_t pool_size = 0;  // 0: as it is configured it is large enough, or cannot be had
  std::uint64_t quota = 0;      // of the pool, for the owner; 0: no quota is in the way
  bool coming = false;          // amemd is still creating enough of the pool
  std::string trouble;          // why amemd cannot create the pool as it is configured
};

/// "the host pool is too small, even without zeros: …".
std::string describe(const Shortage& shortage);

}  // namespace amem
