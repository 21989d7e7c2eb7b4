// `amemctl wait-idle`: returns when no pause, resume or swap is under way.
#pragma once

#include "client/core/control_client.h"
#include "client/ctl/command_line.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/output.h"

namespace amem::ctl {

/// Of the groups that the caller may see. Nothing keeps the next operation from beginning. Gives
/// the exit code.
int wait_idle(const CommandLine& options, client::ControlClient& broker, Console& console,
              const Interrupt* interrupt);

}  // namespace amem::ctl
