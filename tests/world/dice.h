// Dice: what a seed decides.
#pragma once

#include <cstdint>
#include <random>

#include "daemon/base/clock.h"

namespace amem::world {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t count) { return engine_() % count; }
  /// Both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low + 1)));
  }
  Duration between(Duration low, Duration high) {
    return Duration(between(low.count(), high.count()));
  }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace amem::world
