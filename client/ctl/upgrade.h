// `amemctl upgrade`: the amemd that is installed now takes the place of the one that runs.
#pragma once

#include "client/core/control_client.h"
#include "client/ctl/command_line.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/output.h"

namespace amem::ctl {

/// Asks for it, again while operations are under way, then waits until the next amemd serves and
/// all ranks have come back to it. Gives the exit code.
int upgrade(const CommandLine& options, client::ControlClient& broker, Console& console,
            const Interrupt* interrupt);

}  // namespace amem::ctl
