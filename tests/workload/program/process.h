// What commands do with the process as a whole: the shim's NCCL calls, children.
#pragma once

#include <string>

#include "tests/workload/base/answer.h"

namespace amem::workload {

/// Calls `int name(void*)`, one of the calls that a preloaded library offers to everybody, with
/// NULL. Fails when nobody offers it or when it does not return 0.
void CallPreloaded(const std::string& name, Answer* answer);

/// Forks a child that tries a memory call of NCCL's and ends as a program does, running its exit
/// handlers; with `exec` it executes this program again instead. Fails unless the child ends well
/// before the deadline.
void RunChild(bool exec, Answer* answer);

}  // namespace amem::workload
