// amemctl's exit codes: part of its interface, listed in --help and docs/amemctl.md. Any thread.
#pragma once

#include <string_view>

#include "common/status.h"

namespace amem::ctl {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,  // doctor: there is a problem
  kExitUsage = 2,
  kExitUnreachable = 3,
  kExitNotFound = 4,
  kExitWrongState = 5,
  kExitDeadline = 6,
  kExitResources = 7,
  kExitPermission = 8,
  kExitCannotExecute = 126,    // run: as in a shell
  kExitCommandNotFound = 127,  // run: as in a shell
  kExitInterrupted = 130,      // as in a shell: 128 + SIGINT
};

/// For --help.
inline constexpr std::string_view kExitCodeHelp =
    R"(Exit codes:
  0  ok
  1  the operation failed; doctor: there is a problem
  2  wrong usage, or an argument that the broker refuses
  3  amemctl cannot reach the broker
  4  no such group or tag
  5  wrong state, e.g. the group is already paused; ready: the group does not run
  6  a deadline passed
  7  the pool or a device is too small
  8  no permission
  126, 127  run: cannot execute the command, cannot find it (else the exit status of the command)
  130  interrupted; the broker continues the operation)";

ExitCode exit_code(Code code);

}  // namespace amem::ctl
