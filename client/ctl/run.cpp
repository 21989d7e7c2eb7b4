#include "client/ctl/run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "client/core/endpoint.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/first_turn.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/job/parent.h"
#include "client/ctl/output.h"
#include "client/ctl/preload.h"
#include "common/job.h"
#include "common/protocol.h"

extern char** environ;

namespace amem::ctl {
namespace {

namespace fs = std::filesystem;

std::string absolute(const std::string& path, const RunContext& context) {
  return (fs::path(context.working_dir) / path).lexically_normal().string();
}

bool is_socket(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode);
}

bool is_file(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

Result<std::string> find_shim(const RunContext& context) {
  std::vector<std::string> candidates;
  if (const std::string named = value_in(context.environment, "AMEM_SHIM"); !named.empty()) {
    candidates.push_back(absolute(named, context));  // asked for: no other will do
  } else {
    // Installed or in a build tree: the library directory lies beside the program's.
    const fs::path prefix = fs::path(context.program_dir) / "..";
    for (const char* dir : {AMEM_INSTALL_LIBDIR, "lib", "lib64"}) {
      for (const char* below : {"", "amem"}) {
        std::string path = (prefix / dir / below / kShimName).lexically_normal().string();
        if (std::find(candidates.begin(), candidates.end(), path) == candidates.end()) {
          candidates.push_back(std::move(path));
        }
      }
    }
  }
  std::string tried;
  for (const std::string& path : candidates) {
    if (is_file(path)) return path;
    tried += (tried.empty() ? "" : ", ") + path;
  }
  return Status(Code::kNotFound,
                std::string(kShimName) + " is not at " + tried + ". Set AMEM_SHIM to its path");
}

}  // namespace

Result<RunPlan> plan_run(const CommandLine& options, const RunContext& context) {
  auto shim = find_shim(context);
  if (!shim.ok()) return shim.status();
  if (shim.value().find_first_of(" :") != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  "LD_PRELOAD does not support a path with a space or a colon: " + shim.value() +
                      ". Make a link to it, and set AMEM_SHIM to the link");
  }

  // Absolute, because the program may change its directory before a rank of it connects.
  const std::string dir =
      absolute(options.runtime_dir.empty() ? context.runtime_dir : options.runtime_dir, context);

  RunPlan plan;
  const std::string session = dir + "/" + std::string(kSessionSocket);
  if (!is_socket(session)) {
    const std::string text = "amemd does not run here: there is no socket " + session;
    if (options.required) {
      return Status(Code::kUnavailable, text +
                                            ". Start it with `systemctl start amemd` or `amemd "
                                            "--runtime-dir " +
                                            dir + "`");
    }
    plan.warnings.push_back(text + ". The command runs without amem");
  }
  if (value_in(context.environment, "AMEM_DISABLE") == "1" ||
      value_in(context.environment, "AMEM_ENABLE") == "0") {
    plan.warnings.push_back(
        "AMEM_DISABLE=1 or AMEM_ENABLE=0 is set in the environment, so the shim does nothing");
  }

  // Whoever knows the scopes has chosen one. Where amem does nothing, a warning says so already.
  if (plan.warnings.empty() && options.scope.empty() &&
      value_in(context.environment, "AMEM_SCOPE").empty())
    plan.notes.push_back(
        "without --scope a pause frees NCCL's memory alone. PyTorch's weights and caches stay on "
        "the GPU. Use --scope heap to free them, too");

  plan.environment = {
      {"AMEM_GROUP", options.group},
      {"AMEM_RUNTIME_DIR", dir},
      {"LD_PRELOAD", with_shim(shim.value(), value_in(context.environment, "LD_PRELOAD"))}};
  // Some frameworks set 0 where it is not set, and old NCCLs have 0 by default. What is brokered is
  // the same, but NCCL's buffers share slabs with 1 only.
  if (value_in(context.environment, "NCCL_CUMEM_ENABLE").empty())
    plan.environment.emplace_back("NCCL_CUMEM_ENABLE", "1");
  if (!options.stage.empty()) plan.environment.emplace_back("AMEM_STAGE", options.stage);
  // A program that amem does not broker waits for nobody.
  if (plan.warnings.empty())
    plan.stage =
        options.stage.empty() ? value_in(context.environment, "AMEM_STAGE") : options.stage;
  if (!options.scope.empty()) plan.environment.emplace_back("AMEM_SCOPE", options.scope);
  if (options.required) plan.environment.emplace_back("AMEM_REQUIRED", "1");
  if (!options.trace.empty()) {
    plan.environment.emplace_back("AMEM_TRACE", absolute(options.trace, context));
  }
  return plan;
}

RunContext current_context() {
  RunContext context;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    const std::size_t equals = variable.find('=');
    if (equals == std::string_view::npos) continue;
    context.environment.emplace(variable.substr(0, equals), variable.substr(equals + 1));
  }
  std::error_code ignored;  // then the paths come out relative, and the message shows them
  context.program_dir = fs::read_symlink("/proc/self/exe", ignored).parent_path().string();
  context.working_dir = fs::current_path(ignored).string();
  context.runtime_dir = default_runtime_dir();
  return context;
}

namespace {

/// Of the group of this job, as far as it is known before the launcher begins.
std::string whole_name(const CommandLine& options) {
  return whole_group_name(options.group, job_of(::getenv, this_place()));
}

/// Empty: its path is too long, and the session's socket has none either.
std::string control_socket(const CommandLine& options, const RunPlan& plan) {
  const auto socket = client::control_socket(
      value_in({plan.environment.begin(), plan.environment.end()}, "AMEM_RUNTIME_DIR"),
      options.socket);
  return socket.ok() ? socket.value() : std::string();
}

/// 0: the command starts now, for whatever reason.
int wait_for_turn(const CommandLine& options, const RunPlan& plan) {
  const std::string socket = control_socket(options, plan);
  if (plan.stage.empty() || socket.empty()) return kExitOk;
  Status status;
  {
    Interrupt interrupt(Interrupt::OnTerminalStop::kCalls);  // before gRPC starts its threads
    status =
        wait_for_first_turn({socket, whole_name(options), plan.stage, options.timeout}, interrupt);
  }
  if (status.ok()) return kExitOk;
  if (status.code() == Code::kCancelled) {
    std::fprintf(stderr, "amemctl: interrupted. The command has not started\n");
    return kExitInterrupted;
  }
  // Without amemd there is no telling who has the GPUs.
  if (options.required || status.code() == Code::kDeadlineExceeded ||
      status.code() == Code::kUnavailable) {
    write_error(status, options.json);
    return exit_code(status.code());
  }
  std::fprintf(stderr, "amemctl: %s. The command starts without waiting for a turn\n",
               status.text().c_str());
  return kExitOk;
}

}  // namespace

int execute_run(const CommandLine& options) {
  const auto plan = plan_run(options, current_context());
  if (!plan.ok()) {
    // A shim that is missing is a broken installation, not an unknown group.
    const Code code = plan.status().code();
    write_error(plan.status(), options.json);
    return code == Code::kNotFound ? kExitFailed : exit_code(code);
  }
  for (const auto* lines : {&plan.value().warnings, &plan.value().notes})
    for (const std::string& line : *lines) std::fprintf(stderr, "amemctl: %s\n", line.c_str());
  for (const auto& [name, value] : plan.value().environment) {
    if (::setenv(name.c_str(), value.c_str(), 1) != 0) {
      write_error(errno_status(Code::kInternal, "setenv " + name, errno), options.json);
      return kExitFailed;
    }
  }
  std::optional<JobSignals> signals;
  if (options.job_control) signals.emplace();
  if (const int code = wait_for_turn(options, plan.value()); code != kExitOk) return code;
  if (signals)
    return run_as_parent(
        {options.program,
         plan.value().warnings.empty() ? control_socket(options, plan.value()) : "",
         whole_name(options)},
        *signals, options.json);
  std::vector<char*> argv;
  for (const std::string& argument : options.program) {
    argv.push_back(const_cast<char*>(argument.c_str()));  // execvp does not write to them
  }
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  const int error = errno;
  write_error(errno_status(Code::kInternal, options.program.front(), error), options.json);
  return error == ENOENT ? kExitCommandNotFound : kExitCannotExecute;
}

}  // namespace amem::ctl
