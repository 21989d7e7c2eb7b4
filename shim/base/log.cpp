#include "shim/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "common/status.h"
#include "shim/base/no_cancel.h"

namespace amem::shim {
namespace {

std::atomic<LogLevel> max_level{LogLevel::kWarn};

int trace_fd = -1;  // set once, before the first wrapper runs

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

void open_trace(std::string path) {
  if (path.empty()) return;
  if (const std::size_t at = path.find("%p"); at != std::string::npos)
    path.replace(at, 2, std::to_string(::getpid()));
  trace_fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (trace_fd < 0)
    log_error(errno_status(Code::kInvalidArgument, "AMEM_TRACE=" + path, errno).text());
}

bool tracing() { return trace_fd >= 0; }

void trace(const char* format, ...) {
  if (!tracing()) return;
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  const int n = std::vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (n <= 0) return;
  std::size_t length =
      static_cast<std::size_t>(n) < sizeof line - 1 ? static_cast<std::size_t>(n) : sizeof line - 2;
  line[length++] = '\n';
  [[maybe_unused]] const ssize_t written = ::write(trace_fd, line, length);
}

}  // namespace amem::shim
