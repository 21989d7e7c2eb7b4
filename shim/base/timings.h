// Timings: how the shim spends its time on a command of the broker's, for PhaseDone. Plain values;
// the service thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "amem/v1/session.pb.h"

namespace amem::shim {

using SteadyClock = std::chrono::steady_clock;

/// Driver calls since the last answer, each kind by itself.
struct Timings {
  SteadyClock::duration import{};
  SteadyClock::duration map{};
  SteadyClock::duration access{};
  SteadyClock::duration unmap{};
  SteadyClock::duration release{};
  std::uint32_t handles = 0;  // imported or released
};

/// Adds the time of its life to one of them.
class Timed {
 public:
  explicit Timed(SteadyClock::duration& total) : total_(total) {}
  ~Timed() { total_ += SteadyClock::now() - began_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  SteadyClock::duration& total_;
  SteadyClock::time_point began_ = SteadyClock::now();
};

/// When the first packet of each kind of command came.
class PhaseClock {
 public:
  void begin(amem_v1_Phase phase) {
    SteadyClock::time_point& began = began_[phase];
    if (began == SteadyClock::time_point()) began = SteadyClock::now();
  }
  /// The time since then; begins anew.
  SteadyClock::duration end(amem_v1_Phase phase) {
    const SteadyClock::time_point began = began_[phase];
    began_[phase] = {};
    if (began == SteadyClock::time_point()) return {};
    return SteadyClock::now() - began;
  }

 private:
  std::array<SteadyClock::time_point, _amem_v1_Phase_ARRAYSIZE> began_{};
};

inline std::uint64_t micros(SteadyClock::duration time) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

}  // namespace amem::shim
