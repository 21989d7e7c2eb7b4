// Supervisor: watches the processes of a test from outside and ends them when one fails or none
// moves any more.
//
// It owns the processes it was given. It never touches CUDA, so it can always speak; a rank that
// hangs in a collective cannot. One thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/gpu/driver/control.h"

namespace gpu_test {

/// Exit status of a hung test, as of timeout(1).
inline constexpr int kHung = 124;

/// Asks a thread for its call stack: for the ranks, before anything else in the process.
void install_stack_dumper();

/// Waits for all processes. Returns the first exit status that is not 0 (128 + signal for a killed
/// one), kHung when `watchdog_seconds` passed without any sign of progress of some unfinished rank.
/// Writes the lowest iteration count of the ranks to the file `progress`, if named, about ten times
/// a second.
int supervise(const std::vector<pid_t>& processes, const Control& control, int ranks,
              int watchdog_seconds, const std::string& progress);

}  // namespace gpu_test
