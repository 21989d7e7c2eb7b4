// What stands in for the add-on `tools` in a build without it.
#include <CLI/CLI.hpp>

#include "client/ctl/add_on.h"

namespace amem::ctl {
namespace {

constexpr const char* kAbsent =
    "this amemctl was built without the add-on tools. Build it with the folder addons/tools, or "
    "install the package amemd of this release";

}  // namespace

void add_tools(CLI::App& app, CommandLine&) {
  for (const char* name : {"advise", "bench", "doctor"}) {
    CLI::App& command = *app.add_subcommand(name, kAbsent)->group("")->allow_extras();
    command.callback([name] { throw CLI::ValidationError(name, kAbsent); });
  }
  app.get_subcommand("pause")
      ->add_flag_callback("--dry-run",
                          [] { throw CLI::ValidationError("pause --dry-run", kAbsent); })
      ->group("");
}

Result<std::string> chrome_trace(const std::vector<NodeHistory>&) {
  return Status(Code::kUnimplemented, std::string("--trace: ") + kAbsent);
}

}  // namespace amem::ctl
