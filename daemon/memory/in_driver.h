// InDriver: adds up the time that a thread spends in calls into the driver.
//
// Any thread; each has a sum of its own.
#pragma once

#include "daemon/base/clock.h"

namespace amem {

/// Lives around calls into the driver, also those that the kernel makes for us: closing the last
/// descriptor of device memory frees it. One at a time per thread.
class InDriver {
 public:
  InDriver() : began_(Clock::now()) {}
  ~InDriver() { total_ += Clock::now() - began_; }
  InDriver(const InDriver&) = delete;
  InDriver& operator=(const InDriver&) = delete;

  /// Of another thread, for this one.
  static void add(Duration time) { total_ += time; }
  /// Of this thread, so far.
  static Duration total() { return total_; }

 private:
  static inline thread_local Duration total_{};
  Time began_;
};

}  // namespace amem
