// The commands of amemctl but `run`. Each writes its answer and returns the exit code.
#pragma once

#include "client/core/control_client.h"
#include "client/ctl/command_line.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/output.h"

namespace amem::ctl {

/// All of them: asks the broker. Reads no global state, so that tests can run it
/// against a broker of their own; the caller's thread. `interrupt` may be null. REQUIRES:
/// options.command is one of these.
int execute(const CommandLine& options, client::ControlClient& broker, Console& console,
            Interrupt* interrupt);

/// The loop of `top`: asks for the status repeatedly and draws it on the terminal. Ends when `q` is
/// pressed, on an interrupt, or after one round with --once. Waits for a broker that goes away,
/// unless it was not there at the start. Without a terminal, and with --json, prints each round
/// below the one before.
int top(const CommandLine& options, client::ControlClient& broker, Console& console,
        Interrupt* interrupt);

/// `wait`: asks again and again until what is waited for is there, or cannot come any more, or the
/// time is up.
int wait(const CommandLine& options, client::ControlClient& broker, Console& console,
         Interrupt* interrupt);

}  // namespace amem::ctl
