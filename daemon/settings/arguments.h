// Arguments: amemd's command line, and the configuration that comes of it, the file and the
// environment.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/settings/config.h"

namespace CLI {
class App;
}

namespace amem {

struct Arguments {
  std::string config_file;  // empty: kDefaultConfigFile, if it exists
  bool check_config = false;
  bool speaks = false;  // only say what it has to have in common with another amemd
  std::vector<std::pair<std::string, std::string>> flags;  // a setting's key, its value
};

/// All options of amemd, which set `arguments`.
void add_arguments(CLI::App& app, Arguments& arguments);

/// Nothing when the program is to end with `exit_status` now: --help, --version, or wrong usage;
/// what there is to say has been printed.
std::optional<Arguments> parse_arguments(int argc, const char* const* argv, int& exit_status);

/// Defaults, file, environment, flags, in this order.
Config load_config(const Arguments& arguments, ConfigErrors& errors);

}  // namespace amem
