// The broker's time: steady, passed into all logic as a value so that tests choose it.
#pragma once

#include <chrono>
#include <cstdint>

namespace amem {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Duration = Clock::duration;

inline constexpr Time kNever = Time::max();

inline std::uint64_t to_us(Duration duration) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
}

}  // namespace amem
