// Trace: AMEM_TRACE=FILE writes one line per memory call, in the order in which this process made
// them. The lines are what tests/traces holds and tests/workload replays. Any thread; each line is
// one write.
#pragma once

#include <string>

namespace amem::shim {

/// Opens the file ("%p" in it becomes the pid); an empty path turns tracing off.
void open_trace(std::string path);
bool tracing();
void trace(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace amem::shim
