// amem-checkpoint's command line.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <vector>

#include "addons/checkpoint/answer.h"
#include "common/numbers.h"
#include "common/version.h"

namespace amem {

struct CheckpointArguments {
  std::string action;
  int pid = 0;
  unsigned timeout_ms = 0;
  pid_t parent = 0;  // 0: nobody
};

/// An amemd of an earlier version names no process: whoever is the parent now.
inline void add_parent(CLI::App& app, pid_t& parent) {
  app.add_option_function<std::string>(
         "--with-parent",
         [&parent](const std::string& pid) {
           parent = number_of_text<pid_t>(pid).value_or(::getppid());
         },
         "end when the process PID ends, which has started this one")
      ->type_name("PID")
      ->expected(0, 1);
}

inline void add_arguments(CLI::App& app, CheckpointArguments& arguments) {
  app.name("amem-checkpoint");
  app.description(
      "amem-checkpoint: one step of the CUDA driver's checkpoint of a process. It writes one line "
      "of JSON");
  app.set_version_flag("--version", std::string("amem-checkpoint ") + kVersion);
  app.add_option("ACTION", arguments.action, "the step; state only reports the process's state")
      ->required()
      ->check(CLI::IsMember(
          std::vector<std::string>(kCheckpointActions.begin(), kCheckpointActions.end())));
  app.add_option("PID", arguments.pid, "the process that uses CUDA")
      ->required()
      ->check(CLI::Range(1, std::numeric_limits<int>::max()).description(""))
      ->type_name("");
  app.add_option("--timeout-ms", arguments.timeout_ms,
                 "for lock: after this time the driver gives up, and the process runs on. 0: it "
                 "waits without limit")
      ->type_name("N")
      ->capture_default_str();
  add_parent(app, arguments.parent);
}

}  // namespace amem
