// first_turn: before a program starts, waits until its group has its first turn in a stage.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "client/ctl/interrupt.h"
#include "common/status.h"

namespace amem::ctl {

struct AwaitedStart {
  std::string socket;  // amemd's, for control
  std::string group;
  std::string stage;
  std::optional<std::chrono::milliseconds> timeout;  // nothing: no limit
};

/// Says on standard error that it waits, and for how long. When amemd restarts meanwhile, waits for
/// the next one. OK: the turn is this process's, whatever program it becomes. kCancelled: a signal
/// came. Else as ControlClient::start().
Status wait_for_first_turn(const AwaitedStart& what, Interrupt& interrupt);

}  // namespace amem::ctl
