#include "addons/tools/bench/rank_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

namespace amem::ctl {

Result<RankProcess> RankProcess::start(std::string name, const std::vector<std::string>& command,
                                       const std::map<std::string, std::string>& environment) {
  int in[2] = {-1, -1};
  int out[2] = {-1, -1};
  if (::pipe2(in, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "pipe", errno);
  Fd in_read(in[0]);
  Fd in_write(in[1]);
  if (::pipe2(out, O_CLOEXEC) != 0) return errno_status(Code::kInternal, "pipe", errno);
  Fd out_read(out[0]);
  Fd out_write(out[1]);

  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  for (const auto& [variable, value] : environment) variables.push_back(variable + "=" + value);
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&files, in_read.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, out_write.get(), STDOUT_FILENO);
  sigset_t none;
  sigemptyset(&none);  // amemctl blocks those that interrupt it
  ::posix_spawnattr_setsigmask(&attributes, &none);
  sigset_t pipes;
  sigemptyset(&pipes);
  sigaddset(&pipes, SIGPIPE);
  ::posix_spawnattr_setsigdefault(&attributes, &pipes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, argv[0], &files, &attributes, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return errno_status(Code::kInternal, name + ": " + command.front(), error);
  return RankProcess(std::move(name), pid, std::move(in_write), std::move(out_read));
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      to_(std::move(other.to_)),
      from_(std::move(other.from_)),
      heard_(std::move(other.heard_)) {}

RankProcess::~RankProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Status RankProcess::say(const std::string& line) {
  const std::string text = line + "\n";  // shorter than what a pipe takes at once
  if (::write(to_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return {};
  return errno_status(Code::kAborted, name_ + " no longer reads its input", errno);
}

Result<std::string> RankProcess::hear(Deadline deadline, int interrupt) {
  for (;;) {
    if (const auto end = heard_.find('\n'); end != std::string::npos) {
      std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      if (line.starts_with("error ")) return Status(Code::kInternal, name_ + ": " + line.substr(6));
      return line;
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0)
      return Status(Code::kDeadlineExceeded, name_ + " does not answer. The driver may hang");
    pollfd fds[] = {{from_.get(), POLLIN, 0}, {interrupt, POLLIN, 0}};
    if (::poll(fds, 2, static_cast<int>(std::min<std::int64_t>(left.count(), 3'600'000))) <= 0)
      continue;
    if (fds[1].revents != 0) return Status(Code::kCancelled, "interrupted");
    char bytes[256];
    const ssize_t count = ::read(from_.get(), bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Status(Code::kAborted, name_ + " has ended. Its last output is above");
    heard_.append(bytes, static_cast<std::size_t>(count));
  }
}

}  // namespace amem::ctl
