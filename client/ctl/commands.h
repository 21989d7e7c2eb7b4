// Commands: what each subcommand but `run`, `doctor` and `bench` does: asks the broker, writes the
// answer, returns the exit code. Reads no global state, so that tests can run it against a broker
// of their own; the caller's thread.
#pragma once

#include "client/core/control_client.h"
#include "client/ctl/command_line.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/output.h"

namespace amem::ctl {

/// `interrupt` may be null. REQUIRES: options.command is none of those.
int execute(const CommandLine& options, client::ControlClient& broker, Console& console,
            Interrupt* interrupt);

}  // namespace amem::ctl
