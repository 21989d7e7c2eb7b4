// Retries: when a rank whose broker has ended tries again to reach one, and for how long. Not
// thread-safe.
#pragma once

#include <chrono>
#include <random>

namespace amem::shim {

class Retries {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kFirst{10};
  static constexpr std::chrono::milliseconds kMost{250};  // all are back within a second
  static constexpr std::chrono::milliseconds kForGood{1000};

  /// From `now` on, for `patience`. `seed`: the ranks of a node are not to come all at once.
  Retries(Clock::time_point now, std::chrono::milliseconds patience, unsigned seed)
      : patience_(patience), until_(now + patience), random_(seed) {}

  /// When to try next: each time twice as long from `now`, give or take a quarter, and the last
  /// time when the time is up.
  Clock::time_point next(Clock::time_point now);
  /// There was a broker again, and it has ended: the time begins anew.
  void again(Clock::time_point now) { until_ = now + patience_; }
  bool over(Clock::time_point now) const { return !endless_ && now >= until_; }
  /// From now on each second, without end.
  void go_on() { endless_ = true; }

 private:
  std::chrono::milliseconds patience_;
  Clock::time_point until_;
  std::chrono::milliseconds wait_ = kFirst;
  bool endless_ = false;
  std::mt19937 random_;  // whose first numbers differ also where seeds are neighbours
};

}  // namespace amem::shim
