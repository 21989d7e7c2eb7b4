// Lines on standard error: "amem: [pid] warning: text". And the trace: AMEM_TRACE=FILE writes one
// line per memory call, in the order in which this process made them. The lines are what
// tests/traces holds and tests/workload replays. Any thread; one write per line; no locale, no
// streams.
#pragma once

#include <string>

#include "shim/base/options.h"

namespace amem::shim {

void set_log_level(LogLevel level);
void log(LogLevel level, const std::string& text);
/// What the program asked to see: printed whatever the level.
void say(const std::string& text);

inline void log_error(const std::string& text) { log(LogLevel::kError, text); }
inline void log_warn(const std::string& text) { log(LogLevel::kWarn, text); }
inline void log_info(const std::string& text) { log(LogLevel::kInfo, text); }
inline void log_debug(const std::string& text) { log(LogLevel::kDebug, text); }

/// Opens the trace's file ("%p" in it becomes the pid); an empty path turns tracing off.
void open_trace(std::string path);
bool tracing();
void trace(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace amem::shim
