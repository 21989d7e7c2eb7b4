// Operations as Chrome's trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show.
// Pure functions; any thread.
//
// A process for the broker, with a lane for each group: the operation, and in it its phases. A
// process for each group, with a lane for each rank: what it was asked for, and in that its copies.
// Loads have a lane of their own, since they run while memory is mapped, and so has each kind of
// driver call, since they take turns. Times are Unix time, as PyTorch's profiler has it.
#pragma once

#include <string>

#include "amem/v1/broker.pb.h"

namespace amem::ctl {

/// A JSON object with a newline at the end. Of operations that were asked for with their spans.
std::string chrome_trace(const v1::ListHistoryResponse& history);

}  // namespace amem::ctl
