// `amemctl run`: starts a program with the shim and its settings in the environment.
//
// plan_run() decides and looks at files, but changes nothing; execute_run() does not return if it
// succeeds. Plain functions; execute_run for a process with one thread (it sets the environment,
// and then waits for the group's first turn in a stage).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "client/ctl/command_line.h"
#include "client/ctl/preload.h"
#include "common/status.h"

namespace amem::ctl {

/// What plan_run knows about the world.
struct RunContext {
  Environment environment;
  std::string program_dir;  // where amemctl's executable is
  std::string working_dir;
  std::string runtime_dir;  // when --runtime-dir is not given
};

struct RunPlan {
  std::vector<std::pair<std::string, std::string>> environment;  // to set; the rest stays unchanged
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // nothing is wrong, but a newcomer may not expect it
  std::string stage;               // for whose first turn it waits; empty: none
};

/// kNotFound: no libamem_shim.so; the text lists where it was looked for. kInvalidArgument: its
/// path cannot be in LD_PRELOAD. kUnavailable: no broker, and --required was given.
Result<RunPlan> plan_run(const CommandLine& options, const RunContext& context);

/// This process's own.
RunContext current_context();

/// Becomes the program, or with --job-control stays above it. If it cannot, writes an error on
/// standard error and returns an exit code.
int execute_run(const CommandLine& options);

}  // namespace amem::ctl
