// The names of things: numbers that are never used twice in the broker's life. A device's is its
// UUID (common/protocol.h). And tokens: numbers that nobody can guess. Any thread.
#pragma once

#include <compare>
#include <cstdint>

#include "common/protocol.h"
#include "common/status.h"

namespace amem {

using AllocationId = std::uint64_t;
using RankId = std::uint32_t;   // never 0
using GroupId = std::uint32_t;  // a group whose name is used again is another group
using SessionId = std::uint64_t;

/// An attempt of a group at something, and which of its waves: what ranks are sent and answer
/// carries both, so that a late answer counts for nothing else.
struct Epoch {
  Epoch(std::uint64_t number = 0, std::uint32_t of_wave = 0) : attempt(number), wave(of_wave) {}

  std::uint64_t attempt;
  std::uint32_t wave;  // of a pause in waves; else 0
  friend auto operator<=>(const Epoch&, const Epoch&) = default;
};

/// kInternal: the kernel has none.
Result<Token> random_token();

/// Compares every byte, so that the time taken tells nothing about a token.
bool same_token(const Token& a, const Token& b);

}  // namespace amem
