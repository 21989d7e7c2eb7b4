// Timings: how the shim spends its time on a command of the broker's, for PhaseDone. Plain values;
// the service thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "common/rank_phase.h"

namespace amem::shim {

using SteadyClock = std::chrono::steady_clock;

/// Driver calls of one kind, or copies.
struct CallTime {
  SteadyClock::duration total{};    // in them
  SteadyClock::time_point first{};  // when the first began
  SteadyClock::time_point last{};   // when the last ended

  void add(SteadyClock::time_point begin, SteadyClock::time_point end) {
    if (last == SteadyClock::time_point()) first = begin;
    last = end;
    total += end - begin;
  }
};

/// Driver calls since the last answer, one field for each kind.
struct Timings {
  CallTime import;
  CallTime map;
  CallTime access;
  CallTime unmap;
  CallTime release;
  std::uint32_t handles = 0;  // imported or released
};

/// Adds its life to one of them.
class Timed {
 public:
  explicit Timed(CallTime& call) : call_(call) {}
  ~Timed() { call_.add(began_, SteadyClock::now()); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  CallTime& call_;
  SteadyClock::time_point began_ = SteadyClock::now();
};

/// When the first packet of each kind of command came.
class PhaseClock {
 public:
  void begin(RankPhase phase) { began_.try_emplace(phase, SteadyClock::now()); }
  /// When that was; now, if none has come. Forgets it.
  SteadyClock::time_point end(RankPhase phase) {
    const auto began = began_.extract(phase);
    return began.empty() ? SteadyClock::now() : began.mapped();
  }

 private:
  std::map<RankPhase, SteadyClock::time_point> began_;
};

inline std::uint64_t micros(SteadyClock::duration time) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

}  // namespace amem::shim
