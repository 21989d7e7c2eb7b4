// The seam for commands that amemctl has beside its own: what they are, and the add-on `tools`
// (addons/tools) that has them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/ctl/views/views.h"
#include "common/status.h"

namespace CLI {
class App;
}

namespace amem::ctl {

struct CommandLine;
struct Invocation;

/// What a command of an add-on does, or amemctl's own command with an option of an add-on. One of
/// `alone` and `asks` is set; each returns the exit code.
struct AddedCommand {
  /// Asks no broker. The process has one thread then.
  std::function<int(const CommandLine&)> alone = {};
  /// May be interrupted; see Invocation.
  std::function<int(const Invocation&)> asks = {};
  /// Why this command line is wrong usage; empty: it is right. May be null.
  std::function<std::string(const CommandLine&)> fault = {};
};

// amemctl is linked with the add-on, or with no_tools.cpp, which refuses these commands and says
// how to get them.

/// Adds the add-on's subcommands, and its options of other subcommands, which are there already.
void add_tools(CLI::App& app, CommandLine& options);

/// The operations as Chrome's trace events: a JSON object with a newline at the end. REQUIRES: they
/// were asked for with their spans. kUnimplemented: this amemctl has no tools.
Result<std::string> chrome_trace(const std::vector<NodeHistory>& nodes);

}  // namespace amem::ctl
