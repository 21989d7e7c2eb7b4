// Lines on standard error: "amem: [pid] warning: text". Any thread; one write per line; no locale,
// no streams.
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

}  // namespace amem::shim
