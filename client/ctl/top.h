// The loop of `amemctl top`: asks for the status again and again and draws it on the terminal.
#pragma once

#include "client/core/control_client.h"
#include "client/ctl/command_line.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/output.h"

namespace amem::ctl {

/// Returns the exit code when `q` is pressed, on an interrupt, or after one round with --once. A
/// broker that goes away is waited for, unless it was not there at the start. Without a terminal,
/// and with --json, each round is printed below the one before.
int top(const CommandLine& options, client::ControlClient& broker, Console& console,
        Interrupt* interrupt);

}  // namespace amem::ctl
