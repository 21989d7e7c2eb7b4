#include "daemon/base/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>

extern char** environ;

namespace amem {
namespace {

void close_all_but_standard_streams(posix_spawn_file_actions_t& actions) {
#if __GLIBC_PREREQ(2, 34)
  ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
#else
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    if (fd > STDERR_FILENO) ::posix_spawn_file_actions_addclose(&actions, fd);
  }
#endif
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<pid_t> start_program(std::vector<std::string> words, int input, int output,
                            std::optional<std::vector<std::string>> environment) {
  std::vector<char*> argv = pointers_to(words);
  std::vector<char*> envp;
  if (environment) envp = pointers_to(*environment);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  if (input < 0)
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  else
    ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  close_all_but_standard_streams(actions);
  sigset_t none;
  sigset_t pipe;
  sigemptyset(&none);
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &pipe);
  // In a process group of its own, or a terminal's Ctrl-C would end it in the middle of a step.
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, argv[0], &actions, &attributes, argv.data(),
                                  environment ? envp.data() : environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return errno_status(Code::kNotFound, std::string("start ") + argv[0], error);
  return child;
}

void end_now(pid_t child) {
  ::kill(child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool reap(pid_t child, int& exit) {
  const pid_t found = ::waitpid(child, &exit, WNOHANG);
  return found == child || (found < 0 && errno != EINTR);
}

bool reap_until(pid_t child, int process, int& exit, Time until) {
  while (!reap(child, exit)) {
    pollfd end{process, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    const int wait = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    if (wait == 0 || (::poll(&end, 1, wait) < 0 && errno != EINTR)) return false;
  }
  return true;
}

std::string describe_exit(int exit) {
  return WIFSIGNALED(exit) ? "signal " + std::to_string(WTERMSIG(exit))
                           : "exit status " + std::to_string(WEXITSTATUS(exit));
}

std::string on_one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& each : text)
    if (static_cast<unsigned char>(each) < ' ') each = ' ';
  return text;
}

}  // namespace amem
