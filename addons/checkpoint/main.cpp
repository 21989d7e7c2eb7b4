// amem-checkpoint: one step of the CUDA driver's checkpoint of a process.
//
// A program of its own, because the driver's calls have no deadline (but lock): whoever started it
// may kill it. Exit status: 0 the driver has done it; 1 the driver refused; 2 wrong usage; 3 there
// is no driver, or it lacks the calls.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

#include "addons/checkpoint/arguments.h"
#include "addons/checkpoint/end.h"
#include "addons/checkpoint/target.h"
#include "common/driver.h"

namespace amem {
namespace {

constexpr char kRequired[] = ". Checkpoints require NVIDIA's driver 570 (CUDA 12.8) or newer";

[[noreturn]] void no_driver(const std::string& why) {
  end(3, stderr, "amem-checkpoint: " + why + kRequired);
}

const char* lacking(const Driver& driver, CheckpointAction action) {
  if (driver.cuCheckpointProcessGetState_ == nullptr) return "cuCheckpointProcessGetState";
  switch (action) {
    case CheckpointAction::kState:
      break;
    case CheckpointAction::kLock:
      if (driver.cuCheckpointProcessLock_ == nullptr) return "cuCheckpointProcessLock";
      break;
    case CheckpointAction::kCheckpoint:
      if (driver.cuCheckpointProcessCheckpoint_ == nullptr) return "cuCheckpointProcessCheckpoint";
      break;
    case CheckpointAction::kRestore:
      if (driver.cuCheckpointProcessRestore_ == nullptr) return "cuCheckpointProcessRestore";
      break;
    case CheckpointAction::kUnlock:
      if (driver.cuCheckpointProcessUnlock_ == nullptr) return "cuCheckpointProcessUnlock";
      break;
  }
  return nullptr;
}

std::string version_of(const Driver& driver) {
  int version = 0;
  if (driver.cuDriverGetVersion_ == nullptr || driver.cuDriverGetVersion_(&version) != CUDA_SUCCESS)
    return "";
  return " for CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void initialise(const Driver& driver) {
  if (const CUresult result = driver.cuInit_(0); result != CUDA_SUCCESS)
    no_driver("cuInit: " + driver.name(result));
}

CUresult state_of(const Driver& driver, int pid, ProcessState& state) {
  CUprocessState is{};
  const CUresult result = driver.cuCheckpointProcessGetState_(pid, &is);
  const auto number = static_cast<std::size_t>(is);
  state = result == CUDA_SUCCESS && number < static_cast<std::size_t>(ProcessState::kUnknown)
              ? static_cast<ProcessState>(number)
              : ProcessState::kUnknown;
  return result;
}

CUresult act(const Driver& driver, const CheckpointArguments& arguments, CheckpointAnswer& answer) {
  switch (answer.action) {
    case CheckpointAction::kState:
      break;
    case CheckpointAction::kLock: {
      CUcheckpointLockArgs lock{};
      lock.timeoutMs = arguments.timeout_ms;
      return driver.cuCheckpointProcessLock_(answer.pid, &lock);
    }
    case CheckpointAction::kCheckpoint:
      return driver.cuCheckpointProcessCheckpoint_(answer.pid, nullptr);
    case CheckpointAction::kRestore:
      return driver.cuCheckpointProcessRestore_(answer.pid, nullptr);
    case CheckpointAction::kUnlock:
      return driver.cuCheckpointProcessUnlock_(answer.pid, nullptr);
  }
  return state_of(driver, answer.pid, answer.state);
}

int run(int argc, char** argv) {
  if (argc > 1 && argv[1] == std::string_view("target")) return run_target(argc - 1, argv + 1);
  CheckpointArguments arguments;
  CLI::App app;
  add_arguments(app, arguments);
  CheckpointAnswer answer;
  try {
    app.parse(argc, argv);
    answer.action = kind_of<CheckpointAction>(arguments.action, kCheckpointActions).value();
    if (arguments.timeout_ms != 0 && answer.action != CheckpointAction::kLock)
      throw CLI::ValidationError("--timeout-ms", "only lock has a timeout");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  answer.pid = arguments.pid;
  // The next amemd looks at the process, and must not find it changed by this one afterwards.
  end_with(arguments.parent);

  Driver driver;
  if (const Status status = driver.load(); !status.ok()) no_driver(status.text());
  if (const char* call = lacking(driver, answer.action); call != nullptr)
    no_driver("the CUDA driver" + version_of(driver) + " lacks " + call);
  // Without a process that keeps the driver awake a restore needs this (cuda.h). It makes no
  // context. The other calls need it only where the driver says so: it takes long on large nodes.
  bool initialised = answer.action == CheckpointAction::kRestore;
  if (initialised) initialise(driver);
  CUresult result{};
  while (true) {
    const auto began = std::chrono::steady_clock::now();
    result = act(driver, arguments, answer);
    answer.us = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                               std::chrono::steady_clock::now() - began)
                                               .count());
    if (result != CUDA_ERROR_NOT_INITIALIZED || initialised) break;
    initialise(driver);
    initialised = true;
  }
  if (answer.action != CheckpointAction::kState) state_of(driver, answer.pid, answer.state);
  const char* name = nullptr;
  answer.result = static_cast<int>(result);
  answer.name = driver.cuGetErrorName_(result, &name) == CUDA_SUCCESS && name != nullptr
                    ? name
                    : "CUDA_ERROR";
  end(result == CUDA_SUCCESS ? 0 : 1, stdout, line_of(answer));
}

}  // namespace
}  // namespace amem

int main(int argc, char** argv) { return amem::run(argc, argv); }
