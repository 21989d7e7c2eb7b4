// Nodes: commands that are put to each of several nodes. What they answer is written in the order
// of the list.
#pragma once

#include <string>
#include <vector>

#include "client/ctl/command_line.h"
#include "client/ctl/commands.h"
#include "common/status.h"

namespace amem::ctl {

/// Returns whether the command asks each node separately.
bool asks_each_node(Command command);

/// Puts the command to each node, at most 64 at a time, and writes what each answers under its
/// address; with JSON, one object a line. A node that does not answer is an error line, and the
/// exit code 1. REQUIRES: asks_each_node().
int execute_on_each(const CommandLine& options, const std::vector<std::string>& nodes,
                    Console& console, Interrupt* interrupt);

}  // namespace amem::ctl
