// Invocation: what a command that asks the broker is given. It refers to what outlives it; one
// thread.
#pragma once

#include "client/core/control_client.h"
#include "client/ctl/command_line.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/output.h"

namespace amem::ctl {

struct Invocation {
  const CommandLine& options;
  client::ControlClient& broker;
  Console& console;
  Interrupt* interrupt;

  bool interrupted() const { return interrupt != nullptr && interrupt->happened(); }

  /// Writes the error, if there is one. Returns the exit code. A call that an interrupt ended is
  /// not an error.
  int end(const Status& status) const {
    if (interrupted() && status.code() == Code::kCancelled) return kExitInterrupted;
    if (!status.ok()) console.err << error_line(status, options.json);
    return exit_code(status.code());
  }
};

}  // namespace amem::ctl
