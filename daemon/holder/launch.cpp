#include "daemon/holder/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/base/own_program.h"

namespace amem {
namespace {

constexpr char kProgram[] = "amem-holder";
constexpr char kSocket[] = "holder.sock";
constexpr Duration kLook = std::chrono::milliseconds(10);
/// One that found the last one's lock still taken has ended; so another is started.
constexpr Duration kStartAgain = std::chrono::seconds(2);
constexpr int kReport = 3;  // the pipe on which the child says why it could not start

/// Between fork and exec, in a process that may have had threads: plain system calls only.
[[noreturn]] void become(const char* program, char* const* argv, int output, int report) {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  const int null = ::open("/dev/null", O_RDONLY);
  const bool ready = ::chdir("/") == 0 && null >= 0 && ::dup2(output, STDOUT_FILENO) >= 0 &&
                     ::dup2(output, STDERR_FILENO) >= 0 && ::dup2(null, STDIN_FILENO) >= 0 &&
                     (report == kReport || ::dup3(report, kReport, O_CLOEXEC) >= 0);
  if (ready) {
    if (::syscall(SYS_close_range, kReport + 1, ~0U, 0) != 0) {
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      const auto end = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, INT_MAX));
      for (int fd = kReport + 1; fd < end; ++fd) ::close(fd);
    }
    ::execv(program, argv);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t n = ::write(ready ? kReport : report, &error, sizeof error);
  ::_exit(127);
}

/// With systemd's default, KillMode=control-group, whatever it starts ends with it.
bool is_main_process_of_unit() {
  const char* pid = std::getenv("SYSTEMD_EXEC_PID");
  return pid != nullptr && std::to_string(::getpid()) == pid;
}

Status start(const HolderLaunch& launch, const std::string& program, Time until) {
  std::error_code ignored;
  std::vector<std::string> words = {program, "--socket",
                                    std::filesystem::absolute(launch.path, ignored).string()};
  if (!launch.log_level.empty()) words.insert(words.end(), {"--log-level", launch.log_level});
  if (!launch.log_format.empty()) words.insert(words.end(), {"--log-format", launch.log_format});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  Fd output;
  if (!launch.log_file.empty())
    output.reset(::open(launch.log_file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "pipe2", errno);
  const Fd reports(ends[0]);
  // Above the standard streams, which the child puts others in the places of.
  Fd report(::fcntl(ends[1], F_DUPFD_CLOEXEC, kReport));
  ::close(ends[1]);
  if (!report) return errno_status(Code::kInternal, "a descriptor for " + program, errno);
  const pid_t child = ::fork();
  if (child < 0) return errno_status(Code::kInternal, "fork for " + program, errno);
  if (child == 0) {
    // The process between the two ends at once, so that init has the other, in a session of its own
    // without a terminal.
    ::setsid();
    const pid_t holder = ::fork();
    if (holder == 0)
      become(program.c_str(), argv.data(), output ? output.get() : STDERR_FILENO, report.get());
    ::_exit(holder < 0 ? 1 : 0);
  }
  report.reset();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return {Code::kResourceExhausted,
            "cannot start " + program + ": its second process failed to start"};
  int error = 0;
  pollfd said{reports.get(), POLLIN, 0};
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
  if (::poll(&said, 1, static_cast<int>(std::max<std::int64_t>(left, 1))) > 0 &&
      ::read(reports.get(), &error, sizeof error) == sizeof error)
    return errno_status(Code::kNotFound, "start " + program, error);
  return {};
}

}  // namespace

std::string default_holder_socket(const std::string& runtime_dir) {
  return runtime_dir.substr(0, runtime_dir.find_last_not_of('/') + 1) + "-holder/" + kSocket;
}

std::string former_holder_socket(const std::string& runtime_dir) {
  return runtime_dir + "/" + kSocket;
}

Result<std::unique_ptr<HolderClient>> ensure_holder(const HolderLaunch& launch,
                                                    const std::stop_token& stop) {
  const std::string program = launch.program.empty() ? program_beside(kProgram) : launch.program;
  const Time until = Clock::now() + launch.limit;
  Time start_at = Clock::now();
  while (true) {
    Result<std::unique_ptr<HolderClient>> holder =
        HolderClient::connect(launch.path, launch.welcome);
    if (holder.status().code() == Code::kUnavailable && !launch.former.empty()) {
      auto former = HolderClient::connect(launch.former, launch.welcome);
      if (former.status().code() != Code::kUnavailable) holder = std::move(former);
    }
    const Code code = holder.status().code();
    // One that serves another may not have seen yet that this one ended; and one that ends comes
    // again where a service manager starts it.
    if (code != Code::kUnavailable && code != Code::kFailedPrecondition && code != Code::kAborted)
      return holder;
    if (stop.stop_requested()) return Status(Code::kCancelled, "amemd is ending");
    const Time now = Clock::now();
    if (now >= until) {
      if (code == Code::kFailedPrecondition) return holder;
      if (!launch.start)
        return Status(Code::kNotFound,
                      "no amem-holder serves " + launch.path + " after " +
                          std::to_string(to_us(launch.limit) / 1000) + " ms (" +
                          holder.status().text() +
                          "). amemd does not start one itself (holder = \"external\")");
      return Status(Code::kDeadlineExceeded,
                    program + ", started by amemd, does not serve " + launch.path + " after " +
                        std::to_string(to_us(launch.limit) / 1000) + " ms (" +
                        holder.status().text() + "). Its log says why");
    }
    if (launch.start && code == Code::kUnavailable && now >= start_at) {
      if (is_main_process_of_unit())
        spdlog::warn(
            "amemd starts amem-holder in the control group of its unit, so systemd may end both "
            "together and lose paused memory. Enable amem-holder.socket, and set holder to "
            "\"external\"");
      if (Status status = start(launch, program, until); !status.ok()) return status;
      start_at = now + kStartAgain;
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace amem
