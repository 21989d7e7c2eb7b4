#include "shim/base/log.h"

#include <unistd.h>

#include <atomic>

#include "shim/base/no_cancel.h"

namespace amem::shim {
namespace {

std::atomic<LogLevel> max_level{LogLevel::kWarn};

}  // namespace

void set_log_level(LogLevel level) { max_level.store(level, std::memory_order_relaxed); }

void log(LogLevel level, const std::string& text) {
  if (level > max_level.load(std::memory_order_relaxed)) return;
  static constexpr const char* kNames[] = {"error: ", "warning: ", "info: ", "debug: "};
  say(kNames[static_cast<int>(level)] + text);
}

void say(const std::string& text) {
  const NoCancel no_cancel;
  const std::string line = "amem: [" + std::to_string(::getpid()) + "] " + text + "\n";
  // Nothing can be done about a standard error that takes no more.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace amem::shim
