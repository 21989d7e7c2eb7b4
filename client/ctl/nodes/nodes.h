// Nodes: what of amemctl is about several nodes: their list, and questions that are put to each of
// them. What they answer is written in the order of the list.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/core/control_client.h"
#include "client/ctl/command_line.h"
#include "client/ctl/commands.h"
#include "common/status.h"

namespace amem::ctl {

/// Those of the options; of "@FILE" those in its lines, without empty ones and what follows a '#'.
/// kInvalidArgument: the file cannot be read, or has none.
Result<std::vector<std::string>> nodes_of(const CommandLine& options);

/// The broker of that node: an address, or "unix:" and a socket's path.
client::ControlClient client_of(const CommandLine& options, const std::string& node);

/// Calls `ask` for each of 0 to `count` - 1, up to 64 at the same time, each in a thread of its
/// own.
void ask_all(std::size_t count, const std::function<void(std::size_t)>& ask);

/// Whether the command is put to each node by itself.
bool asks_each_node(Command command);

/// Puts the command to each node, at most 64 at a time, and writes what each answers under its
/// address; with JSON, one object a line. A node that does not answer is an error line, and the
/// exit code 1. REQUIRES: asks_each_node().
int execute_on_each(const CommandLine& options, const std::vector<std::string>& nodes,
                    Console& console, Interrupt* interrupt);

}  // namespace amem::ctl
