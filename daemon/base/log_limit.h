// LogLimit: lines that peers can cause at will, at most so many a minute; then one that says how
// many were left out.
//
// For the loop's thread. REQUIRES: the loop does not run when it goes, or outlives it.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "daemon/base/event_loop.h"

namespace amem {

class LogLimit {
 public:
  /// `what`: the lines, in the plural, as in "12 more refused sessions".
  LogLimit(EventLoop& loop, std::string what, std::uint64_t most = 30,
           Duration minute = std::chrono::minutes(1))
      : loop_(loop), what_(std::move(what)), most_(most), minute_(minute) {}
  ~LogLimit() { end_minute(); }
  LogLimit(const LogLimit&) = delete;
  LogLimit& operator=(const LogLimit&) = delete;

  /// No line has been written or left out within the last minute.
  bool quiet() const { return !timer_; }

  template <class... Arguments>
  void info(spdlog::format_string_t<Arguments...> format, Arguments&&... arguments) {
    if (take()) spdlog::info(format, std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  void warn(spdlog::format_string_t<Arguments...> format, Arguments&&... arguments) {
    if (take()) spdlog::warn(format, std::forward<Arguments>(arguments)...);
  }

 private:
  bool take();
  void end_minute();

  EventLoop& loop_;
  const std::string what_;
  const std::uint64_t most_;
  const Duration minute_;
  std::uint64_t lines_ = 0;                  // in this minute, those left out too
  std::optional<EventLoop::TimerId> timer_;  // the end of the minute, which begins with a line
};

}  // namespace amem
