// Logging: spdlog's default logger, set up as configured: text or JSON lines, to stderr or a file.
//
// A log file that cannot be written (a full disk) never stops the broker: lines are dropped, and
// their number is logged when writing works again. set_up_logging() once, before other threads;
// reopen_log() and the logger itself from any thread.
#pragma once

#include "common/status.h"
#include "daemon/settings/config.h"

namespace amem {

/// When the log file cannot be opened, logs to stderr, and says so there.
void set_up_logging(const Config& config);

/// Sets the level that the configuration has now.
void set_log_level(const Config& config);

/// Opens the log file anew, after it was moved away. No effect when logging to stderr.
void reopen_log();

}  // namespace amem
