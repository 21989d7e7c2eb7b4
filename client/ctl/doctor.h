// `amemctl doctor`: whether the processes of a command would be brokered, and if not, why.
// Plain functions, for a process with one thread.
#pragma once

#include "client/ctl/command_line.h"
#include "client/ctl/output.h"
#include "client/ctl/run.h"

namespace amem::ctl {

/// With a group: of the command as `run` would start it; without: as it would start in `context`.
/// Writes what it finds, and gives the exit code: kExitOk when it would be brokered, else
/// kExitFailed.
int diagnose(const CommandLine& options, const RunContext& context, Console& console);

}  // namespace amem::ctl
