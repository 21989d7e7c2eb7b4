#include "daemon/settings/arguments.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>

#include "common/fd.h"
#include "common/protocol.h"
#include "common/version.h"
#include "daemon/settings/config.h"

namespace amem {
namespace {

Result<std::string> read_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  ssize_t n = file ? 0 : -1;
  while (file && (n = ::read(file.get(), buffer, sizeof buffer)) > 0)
    text.append(buffer, static_cast<std::size_t>(n));
  if (n < 0) return errno_status(Code::kNotFound, path + ": cannot be read", errno);
  return text;
}

}  // namespace

void add_arguments(CLI::App& app, Arguments& arguments) {
  app.name("amemd")->description("amemd, the GPU memory broker of this node");
  app.set_version_flag("--version", std::string("amemd ") + kVersion);
  app.add_option(
      "-c,--config", arguments.config_file,
      std::string("configuration file (default: ") + kDefaultConfigFile + ", if it exists)");
  app.add_flag("--check-config", arguments.check_config,
               "print the resulting configuration, or what is wrong with it, and exit");
  // For an amemd that this one will replace.
  app.add_flag("--speaks", arguments.speaks, "print the versions of its protocols, and exit")
      ->group("");
  for (const Setting& setting : settings()) {
    CLI::Option* const option =
        app.add_option_function<std::string>(
               setting.flag(),
               [&arguments, &setting](const std::string& value) {
                 arguments.flags.emplace_back(std::string(setting.key), value);
               },
               std::string(setting.what) + " [" + setting.environment() + "]")
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    if (setting.retired) option->group("");  // not in the help
  }
}

std::optional<Arguments> parse_arguments(int argc, const char* const* argv, int& exit_status) {
  Arguments arguments;
  CLI::App app;
  add_arguments(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_status = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  return arguments;
}

Config load_config(const Arguments& arguments, ConfigErrors& errors) {
  Config config = Config::defaults(::geteuid() == 0, default_runtime_dir());
  const bool chosen = !arguments.config_file.empty();
  const std::string path = chosen ? arguments.config_file : kDefaultConfigFile;
  if (chosen || ::access(path.c_str(), F_OK) == 0) {
    const Result<std::string> text = read_file(path);
    if (text.ok())
      apply_toml(config, text.value(), path, errors);
    else
      errors.push_back(text.status().text());
  }
  apply_environment(
      config, [](const char* name) { return std::getenv(name); }, errors);
  apply_flags(config, arguments.flags, errors);
  check(config, errors);
  return config;
}

}  // namespace amem
