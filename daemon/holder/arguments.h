// amem-holder's command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "common/version.h"
#include "daemon/holder/server.h"

namespace amem {

struct HolderArguments {
  HolderSettings settings;
  std::string log_level = "info";
  std::string log_format = "text";
};

inline void add_arguments(CLI::App& app, HolderArguments& arguments) {
  app.name("amem-holder");
  app.description("amem-holder: keeps the descriptors of GPU memory while amemd restarts");
  app.set_version_flag("--version", std::string("amem-holder ") + kVersion);
  app.add_option("--socket", arguments.settings.path,
                 "the socket for amemd; amem-holder makes its directory if it is missing")
      ->required()
      ->type_name("PATH");
  app.add_flag("--stay", arguments.settings.stay,
               "do not end when no job is left; for Kubernetes, which restarts an ended container "
               "later each time");
  app.add_option("--log-level", arguments.log_level, "which messages it writes to stderr")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "critical", "off"}))
      ->capture_default_str();
  app.add_option("--log-format", arguments.log_format, "text or json (one object per line)")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

}  // namespace amem
