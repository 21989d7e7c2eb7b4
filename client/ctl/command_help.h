// What `amemctl --help` and the help of each command say beside the options: the groups that
// commands stand in, and examples. Any thread.
#pragma once

namespace CLI {
class App;
}

namespace amem::ctl {

/// REQUIRES: each command that is not hidden stands in the table of command_help.cpp. What a
/// command has as its footer stays above the example.
void add_help(CLI::App& app);

}  // namespace amem::ctl
