// Shortage: what an operator is told when the pool has no space even for what a look for zeros has
// left: how much is missing, whose bytes these are, and what would help. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace amem {

struct Shortage {
  struct Tag {
    std::uint64_t size = 0;    // of the memory that the pause keeps
    std::uint64_t stored = 0;  // bytes of the pool that it takes, in whole chunks
    bool can_drop = true;      // not NCCL's
  };

  std::uint64_t missing = 0;  // bytes of the pool
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  std::uint64_t not_seen = 0;  // bytes that ranks could not look at
  std::map<std::string, Tag> tags;
  std::map<std::string, std::uint64_t> others;  // other groups with bytes in the pool
};

/// "the host pool is too small, even without zeros: …".
std::string describe(const Shortage& shortage);

}  // namespace amem
