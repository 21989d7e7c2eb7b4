// `amemctl doctor`. For a process with one thread.
#pragma once

#include "client/ctl/command_line.h"
#include "client/ctl/output.h"
#include "client/ctl/run.h"

namespace amem::ctl {

/// Whether the processes of a command would be brokered, and if not, why; without a command:
/// whether the node is in order. With a group: of the command as `run` would start it; without: as
/// it would start in `context`. Gives kExitOk when there is no problem, else kExitFailed.
int diagnose(const CommandLine& options, const RunContext& context, Console& console);

}  // namespace amem::ctl
