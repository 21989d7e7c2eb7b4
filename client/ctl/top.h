// The loop of `amemctl top`: asks for the status again and again and draws it on the terminal.
#pragma once

#include "client/core/broker.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/options.h"
#include "client/ctl/output.h"

namespace amem::ctl {

/// Returns the exit code when `q` is pressed, on an interrupt, or after one round with --once. A
/// broker that goes away is waited for, unless it was not there at the start. Without a terminal,
/// and with --json, each round is printed below the one before.
int top(const Options& options, client::Broker& broker, Console& console, Interrupt* interrupt);

}  // namespace amem::ctl
