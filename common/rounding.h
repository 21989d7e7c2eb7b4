// Rounding of sizes. REQUIRES, of both: the sum of the two numbers fits.
#pragma once

#include <cstdint>

namespace amem {

/// How many pieces of `unit` hold `size`.
constexpr std::uint64_t divide_up(std::uint64_t size, std::uint64_t unit) {
  return (size + unit - 1) / unit;
}

/// The next multiple of `unit`.
constexpr std::uint64_t round_up(std::uint64_t size, std::uint64_t unit) {
  return divide_up(size, unit) * unit;
}

}  // namespace amem
