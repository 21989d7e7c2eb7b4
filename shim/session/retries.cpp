#include "shim/session/retries.h"

#include <algorithm>

namespace amem::shim {

Retries::Clock::time_point Retries::next(Clock::time_point now) {
  const auto wait = endless_ ? kForGood : wait_;
  wait_ = std::min(2 * wait_, kMost);
  const std::chrono::microseconds quarter = wait / 4;
  std::uniform_int_distribution<std::int64_t> jitter(-quarter.count(), quarter.count());
  const Clock::time_point at = now + wait + std::chrono::microseconds(jitter(random_));
  return endless_ ? at : std::min(at, std::max(until_, now));
}

}  // namespace amem::shim
