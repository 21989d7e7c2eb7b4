#include "daemon/base/successor.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "daemon/base/own_program.h"

extern char** environ;

namespace amem {
namespace {

constexpr std::size_t kMostOutput = 16384;  // bytes; what is more is read and dropped

std::string without_newlines(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

int ms_left(Time until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

Result<pid_t> spawn(char* const* argv, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, argv[0], &actions, &attributes, argv, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return errno_status(Code::kNotFound, std::string("start ") + argv[0], error);
  return child;
}

/// Returns what it has written. Returns an error if it did not exit with status 0 until then.
Result<std::string> output_of(char* const* argv, Time until) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "pipe2", errno);
  const Fd reads(ends[0]);
  Fd writes(ends[1]);
  const Result<pid_t> child = spawn(argv, writes.get());
  if (!child.ok()) return child.status();
  writes.reset();
  std::string output;
  char piece[4096];
  bool in_time = true;
  while (true) {
    pollfd ready{reads.get(), POLLIN, 0};
    in_time = ::poll(&ready, 1, ms_left(until)) > 0;
    const ssize_t n = in_time ? ::read(reads.get(), piece, sizeof piece) : 0;
    if (n <= 0) break;
    if (output.size() < kMostOutput) output.append(piece, static_cast<std::size_t>(n));
  }
  int ended = 0;
  while (in_time && ::waitpid(child.value(), &ended, WNOHANG) == 0) {
    in_time = Clock::now() < until;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!in_time) {
    ::kill(child.value(), SIGKILL);
    while (::waitpid(child.value(), &ended, 0) < 0 && errno == EINTR) {
    }
  }
  output = without_newlines(std::move(output));
  if (!in_time)
    return Status(Code::kDeadlineExceeded, std::string(argv[0]) + " did not end in time");
  if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0)
    return Status(Code::kFailedPrecondition, std::string(argv[0]) + ": " + output);
  return output;
}

/// Every descriptor but the standard streams: one of memory, left open in the successor, would keep
/// that memory for good.
void close_on_exec() {
  if (::syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  // Linux 5.10 and older do not know the flag.
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    if (fd > STDERR_FILENO) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

}  // namespace

Successor::Successor(char* const* argv, std::string speaks)
    : program_(own_executable()), argv_(argv), speaks_(std::move(speaks)) {}

Result<std::string> Successor::examine(Duration limit) const {
  const Time until = Clock::now() + limit;
  const auto asked = [&](std::string question, bool with_arguments = false) {
    std::string program = program_;
    std::vector<char*> words = {program.data(), question.data()};
    for (char* const* word = argv_ + 1; with_arguments && *word != nullptr; ++word)
      words.push_back(*word);
    words.push_back(nullptr);
    return output_of(words.data(), until);
  };
  const Result<std::string> version = asked("--version");
  if (!version.ok()) return version.status();
  const Result<std::string> speaks = asked("--speaks");
  if (!speaks.ok()) return speaks.status();
  if (speaks.value() != without_newlines(speaks_))
    return Status(
        Code::kFailedPrecondition,
        program_ + " speaks " + speaks.value() + ", but this amemd speaks " +
            without_newlines(speaks_) +
            ", so it could not continue the running jobs. Restart amemd when no job runs");
  if (const Result<std::string> config = asked("--check-config", true); !config.ok())
    return config.status();
  return version.value().substr(version.value().rfind(' ') + 1);
}

Status Successor::become() const {
  close_on_exec();
  ::execv(program_.c_str(), argv_);
  return errno_status(Code::kInternal, "execute " + program_, errno);
}

}  // namespace amem
