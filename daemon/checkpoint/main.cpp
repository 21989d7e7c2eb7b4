// amem-checkpoint: makes one of the driver's checkpoint calls on a process, and says what came of
// it.
//
//   amem-checkpoint ACTION PID [--timeout-ms N]     state, lock, checkpoint, restore or unlock
//
// amemd starts one for each process of a group: a call may take long or hang, and amemd itself
// makes no call that could. Prints "RESULT STATE MICROSECONDS": the driver's error by its name, the
// state of the process afterwards (running, locked, checkpointed, failed, gone, unknown), and how
// long the call took. Exit status: 0 done, 1 refused, 2 wrong usage, 3 no driver, or one without
// these calls.
#include <cuda.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "common/driver.h"
#include "common/version.h"

namespace amem {
namespace {

constexpr int kRefused = 1;
constexpr int kWrongUsage = 2;
constexpr int kNoDriver = 3;

struct Calls {
  decltype(&cuCheckpointProcessGetState) state = nullptr;
  decltype(&cuCheckpointProcessLock) lock = nullptr;
  decltype(&cuCheckpointProcessCheckpoint) checkpoint = nullptr;
  decltype(&cuCheckpointProcessRestore) restore = nullptr;
  decltype(&cuCheckpointProcessUnlock) unlock = nullptr;

  /// Of the library that the driver's table is from. False: it lacks some.
  bool find() {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto get = [library](auto& call, const char* name) {
      call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(library, name));
      return call != nullptr;
    };
    return get(state, "cuCheckpointProcessGetState") && get(lock, "cuCheckpointProcessLock") &&
           get(checkpoint, "cuCheckpointProcessCheckpoint") &&
           get(restore, "cuCheckpointProcessRestore") && get(unlock, "cuCheckpointProcessUnlock");
  }
};

const char* state_of(const Calls& calls, pid_t pid) {
  CUprocessState state = CU_PROCESS_STATE_RUNNING;
  if (::kill(pid, 0) != 0 && errno == ESRCH) return "gone";
  if (calls.state(pid, &state) != CUDA_SUCCESS) return "unknown";
  switch (state) {
    case CU_PROCESS_STATE_RUNNING:
      return "running";
    case CU_PROCESS_STATE_LOCKED:
      return "locked";
    case CU_PROCESS_STATE_CHECKPOINTED:
      return "checkpointed";
    case CU_PROCESS_STATE_FAILED:
      return "failed";
    default:
      return "unknown";
  }
}

int run(int argc, char** argv) {
  CLI::App app("Makes one of the driver's checkpoint calls on a process", "amem-checkpoint");
  app.set_version_flag("--version", std::string("amem-checkpoint ") + kVersion);
  std::string action;
  pid_t pid = 0;
  unsigned timeout_ms = 10'000;
  app.add_option("ACTION", action, "state, lock, checkpoint, restore or unlock")
      ->required()
      ->check(CLI::IsMember({"state", "lock", "checkpoint", "restore", "unlock"}));
  app.add_option("PID", pid, "The process")->required()->check(CLI::PositiveNumber);
  app.add_option("--timeout-ms", timeout_ms,
                 "How long a lock waits for the process's own driver calls")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    return status == 0 ? 0 : kWrongUsage;
  }

  Driver driver;
  Calls calls;
  if (const Status status = driver.load(); !status.ok()) {
    std::fprintf(stderr, "amem-checkpoint: %s\n", status.text().c_str());
    return kNoDriver;
  }
  if (!calls.find()) {
    std::fprintf(stderr,
                 "amem-checkpoint: this driver cannot checkpoint processes. Install the driver of "
                 "CUDA 12.8 or newer\n");
    return kNoDriver;
  }
  const CUresult ready = driver.cuInit_(0);
  const auto began = std::chrono::steady_clock::now();
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = timeout_ms;
  CUcheckpointCheckpointArgs checkpoint{};
  CUcheckpointRestoreArgs restore{};
  CUcheckpointUnlockArgs unlock{};
  CUprocessState state{};
  CUresult result = ready;
  if (result == CUDA_SUCCESS)
    result = action == "lock"         ? calls.lock(pid, &lock)
             : action == "checkpoint" ? calls.checkpoint(pid, &checkpoint)
             : action == "restore"    ? calls.restore(pid, &restore)
             : action == "unlock"     ? calls.unlock(pid, &unlock)
                                      : calls.state(pid, &state);
  const auto took = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - began);
  const char* name = nullptr;
  if (driver.cuGetErrorName_(result, &name) != CUDA_SUCCESS || name == nullptr)
    name = "CUDA_ERROR_UNKNOWN";
  std::printf("%s %s %lld\n", name, state_of(calls, pid), static_cast<long long>(took.count()));
  return result == CUDA_SUCCESS ? 0 : kRefused;
}

}  // namespace
}  // namespace amem

int main(int argc, char** argv) { return amem::run(argc, argv); }
