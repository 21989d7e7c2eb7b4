#include "daemon/base/log_limit.h"

namespace amem {

bool LogLimit::take() {
  if (!timer_)
    timer_ = loop_.at(Clock::now() + minute_, [this] {
      timer_.reset();
      end_minute();
    });
  return ++lines_ <= most_;
}

void LogLimit::end_minute() {
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
  if (lines_ > most_)
    spdlog::warn("{} more {} were suppressed in the last minute", lines_ - most_, what_);
  lines_ = 0;
}

}  // namespace amem
