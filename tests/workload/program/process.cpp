#include "tests/workload/program/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "common/fd.h"
#include "tests/workload/base/driver.h"
#include "tests/workload/base/failure.h"
#include "tests/workload/nccl/nccl_calls.h"

#ifdef __SANITIZE_ADDRESS__
namespace {
const pid_t process = getpid();
}
/// LeakSanitizer asks. A forked child has the memory of its parent's other threads and not their
/// stacks, so that what these have looks lost.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return getpid() != process ? 1 : 0;
}
#endif

namespace amem::workload {
namespace {

constexpr int kChildDeadlineMs = 20000;

[[noreturn]] void BeChild(bool exec, int report) {
  if (exec) {
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    execl("/proc/self/exe", "amem-workload", "--help", static_cast<char*>(nullptr));
    _exit(127);
  }
  Handle handle = 0;
  const auto result = static_cast<int>(NcclCalls::Create(std::size_t{2} << 20U, {}, &handle));
  const bool told = write(report, &result, sizeof result) == sizeof result;
  std::exit(told ? 0 : 126);  // with exit handlers, as a forked Python worker would
}

}  // namespace

void CallPreloaded(const std::string& name, Answer* answer) {
  const int result = Preloaded<int (*)(void*)>(name)(nullptr);
  answer->Number("result", static_cast<std::uint64_t>(result));
  if (result != 0) answer->Fail(name + " returned " + std::to_string(result));
}

void RunChild(bool exec, Answer* answer) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Failure("no pipe for the child");
  const Fd reader(ends[0]);
  Fd writer(ends[1]);
  const pid_t child = fork();
  if (child < 0) throw Failure("fork failed");
  if (child == 0) BeChild(exec, writer.get());
  writer.reset();

  // The pipe ends when the child does (or executes): no other process has its writing end.
  pollfd waiting{reader.get(), POLLIN, 0};
  int result = 0;
  const bool answered = poll(&waiting, 1, kChildDeadlineMs) > 0 &&
                        read(reader.get(), &result, sizeof result) == sizeof result;
  int status = 0;
  pid_t ended = 0;
  for (int waited = 0; ended == 0 && waited < kChildDeadlineMs; ++waited) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended == 0) usleep(1000);
  }
  if (ended == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    throw Failure("the child did not end");
  }
  answer->Number("status", static_cast<std::uint64_t>(status));
  if (!exec) answer->Number("create_result", static_cast<std::uint64_t>(result));
  if (status != 0 || (!exec && !answered)) {
    answer->Fail("the child ended with status " + std::to_string(status));
  }
}

}  // namespace amem::workload
