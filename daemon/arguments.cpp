#include "daemon/arguments.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "common/protocol.h"
#include "common/version.h"

namespace amem {

std::optional<Arguments> parse_arguments(int argc, const char* const* argv, int& exit_status) {
  Arguments arguments;
  CLI::App app("amemd, the GPU memory broker of this node", "amemd");
  app.set_version_flag("--version", std::string("amemd ") + kVersion);
  app.add_option(
      "-c,--config", arguments.config_file,
      std::string("configuration file (default: ") + kDefaultConfigFile + ", if it exists)");
  app.add_flag("--check-config", arguments.check_config,
               "print the configuration in effect, or what is wrong with it, and exit");
  std::vector<std::string> values(settings().size());
  std::vector<CLI::Option*> options;
  for (std::size_t i = 0; i < settings().size(); ++i) {
    const Setting& setting = settings()[i];
    options.push_back(app.add_option(
        setting.flag(), values[i], std::string(setting.what) + " [" + setting.environment() + "]"));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_status = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  for (std::size_t i = 0; i < options.size(); ++i)
    if (options[i]->count() > 0)
      arguments.flags.emplace_back(std::string(settings()[i].key), values[i]);
  return arguments;
}

Config load_config(const Arguments& arguments, ConfigErrors& errors) {
  Config config = Config::defaults(::geteuid() == 0, default_runtime_dir());
  const bool chosen = !arguments.config_file.empty();
  const std::string path = chosen ? arguments.config_file : kDefaultConfigFile;
  if (chosen || ::access(path.c_str(), F_OK) == 0) {
    errno = 0;
    std::ifstream file(path);
    std::stringstream text;
    if (file && (text << file.rdbuf() || file.eof()))
      apply_toml(config, text.str(), path, errors);
    else if (!file || file.bad())
      errors.push_back(path + ": cannot be read: " + std::strerror(errno != 0 ? errno : EIO));
  }
  apply_environment(
      config, [](const char* name) { return std::getenv(name); }, errors);
  apply_flags(config, arguments.flags, errors);
  check(config, errors);
  return config;
}

}  // namespace amem
