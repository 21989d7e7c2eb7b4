#include "client/ctl/command_help.h"

#include <CLI/CLI.hpp>
#include <string>

#include "client/ctl/exit_code.h"
#include "client/ctl/options.h"

namespace amem::ctl {
namespace {

struct Shown {
  const char* group;  // its title in --help
  const char* name;
  const char* example;
};

constexpr Shown kShown[] = {
    {kJobs, "run", "amemctl run --group train --scope heap -- python3 train.py"},
    {kJobs, "wait", "amemctl wait group train --ranks 8 --timeout 10m"},
    {kJobs, "pause", "amemctl pause train --discard kv_cache"},
    {kJobs, "resume", "amemctl resume train"},
    {kJobs, "swap", "amemctl swap rollout train"},
    {kJobs, "prepare", "amemctl prepare train"},
    {kJobs, "policy", "amemctl policy rollout kv_cache discard"},
    {kJobs, "stage", "amemctl stage train night --priority 5"},
    {kJobs, "lease", "amemctl lease train --timeout 10m"},
    {kJobs, "ready", "amemctl ready rollout --timeout 4s"},
    {kViews, "status", "amemctl status"},
    {kViews, "groups", "amemctl groups train"},
    {kViews, "ranks", "amemctl ranks train"},
    {kViews, "allocations", "amemctl allocations train --summary"},
    {kViews, "top", "amemctl top --interval 500ms"},
    {kViews, "watch", "amemctl watch train --json"},
    {kViews, "turns", "amemctl turns"},
    {kViews, "history", "amemctl history train --most 5"},
    {kViews, "quotas", "amemctl quotas"},
    {kViews, "metrics", "amemctl metrics --format prometheus"},
    {kNode, "health", "amemctl health --timeout 4s"},
    {kNode, "upgrade", "amemctl upgrade --timeout 1m"},
    {kNode, "version", "amemctl version --json"},
};

constexpr std::string_view kGlobalHelp = R"(Where the broker is:
  The runtime directory is --runtime-dir, else $AMEM_RUNTIME_DIR, else /run/amem when it exists or
  for root, else $XDG_RUNTIME_DIR/amem, else /tmp/amem-UID.

Times:
  TIME is 500ms, 30s, 2m, or a number of seconds. For pause, resume and swap, --timeout is how long
  the ranks may take (default: the broker's setting). For wait, it is how long to wait (default: 5m;
  wait idle: 30s), and for lease and prepare, too (default: no limit). For run, it is how long
  to wait for the group's first turn in its stage (default: no limit). For other commands, it is
  how long the broker may take to answer (default: 5s).

)";

}  // namespace

void add_help(CLI::App& app) {
  app.footer(std::string(kGlobalHelp) + std::string(kExitCodeHelp));
  for (const Shown& shown : kShown)
    show(*app.get_subcommand(shown.name), shown.group, shown.example);
}

}  // namespace amem::ctl
