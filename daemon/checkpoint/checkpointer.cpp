#include "daemon/checkpoint/checkpointer.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/units.h"

namespace amem {
namespace {

constexpr char kProgram[] = "amem-checkpoint";
/// Of the caller's limit: a lock that gives up by itself leaves the process as it was.
constexpr int kLockShare = 2;

constexpr std::array kActions = {
    std::pair{ProcessAction::kState, "state"}, std::pair{ProcessAction::kLock, "lock"},
    std::pair{ProcessAction::kCheckpoint, "checkpoint"},
    std::pair{ProcessAction::kRestore, "restore"}, std::pair{ProcessAction::kUnlock, "unlock"}};
constexpr std::array kStates = {
    std::pair{ProcessState::kRunning, "running"}, std::pair{ProcessState::kLocked, "locked"},
    std::pair{ProcessState::kCheckpointed, "checkpointed"},
    std::pair{ProcessState::kFailed, "failed"}, std::pair{ProcessState::kGone, "gone"}};

const char* name_of(ProcessAction action) {
  for (const auto& [each, name] : kActions)
    if (each == action) return name;
  return "";
}

ProcessState state_named(std::string_view text) {
  for (const auto& [state, name] : kStates)
    if (text == name) return state;
  return ProcessState::kUnknown;
}

std::string beside_this_program() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  const std::string own(path, n > 0 ? static_cast<std::size_t>(n) : 0);
  return own.substr(0, own.rfind('/') + 1) + kProgram;
}

ProcessAnswer read_answer(const std::string& said, ProcessAction action, int status) {
  std::istringstream words(said);
  std::string result;
  std::string state;
  ProcessAnswer answer;
  const std::string what = std::string(kProgram) + " " + name_of(action);
  if (!(words >> result >> state)) {
    answer.status = {
        Code::kInternal,
        what +
            (WIFSIGNALED(status) ? " was ended by signal " + std::to_string(WTERMSIG(status))
                                 : " ended with status " + std::to_string(WEXITSTATUS(status))) +
            " and has said nothing. The log has its words"};
    return answer;
  }
  answer.state = state_named(state);
  if (result != "CUDA_SUCCESS")
    answer.status = {
        result == "CUDA_ERROR_OUT_OF_MEMORY" ? Code::kResourceExhausted : Code::kInternal,
        std::string("the driver's ") + name_of(action) + " of this process failed: " + result +
            "; it is " + state};
  return answer;
}

}  // namespace

Checkpointer::Checkpointer(EventLoop& loop, std::string program)
    : loop_(loop), program_(program.empty() ? beside_this_program() : std::move(program)) {}

Checkpointer::~Checkpointer() {
  for (auto& [number, call] : calls_) {
    loop_.unwatch(call.watch);
    loop_.cancel(call.late);
    ::kill(call.child, SIGKILL);
    ::waitpid(call.child, nullptr, WNOHANG);  // one that the driver holds is init's later
  }
}

Status Checkpointer::start(pid_t pid, ProcessAction action, Duration limit, Call& call) {
  const auto lock = std::chrono::duration_cast<std::chrono::milliseconds>(limit / kLockShare);
  std::vector<std::string> words = {program_, name_of(action), std::to_string(pid), "--timeout-ms",
                                    std::to_string(std::max<std::int64_t>(1, lock.count()))};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return errno_status(Code::kResourceExhausted, "pipe2", errno);
  call.output.reset(ends[0]);
  const Fd theirs(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDOUT_FILENO);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error =
      ::posix_spawn(&call.child, program_.c_str(), &actions, &attributes, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return errno_status(Code::kNotFound, "start " + program_, error);
  call.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, call.child, 0)));
  if (call.process) return {};
  const Status status = errno_status(Code::kUnimplemented, "pidfd_open", errno);
  ::kill(call.child, SIGKILL);
  ::waitpid(call.child, nullptr, 0);
  return status;
}

void Checkpointer::call(pid_t pid, ProcessAction action, Duration limit, Done done) {
  const std::uint64_t number = ++last_;
  Call call;
  call.action = action;
  if (const Status status = start(pid, action, limit, call); !status.ok()) {
    loop_.post([status, done = std::move(done)] { done({status, ProcessState::kUnknown}); });
    return;
  }
  call.done = std::move(done);
  call.watch =
      loop_.watch(call.process.get(), EPOLLIN, [this, number](std::uint32_t) { ended(number); });
  call.late = loop_.at(Clock::now() + limit, [this, number, limit] { passed(number, limit); });
  calls_.emplace(number, std::move(call));
}

void Checkpointer::ended(std::uint64_t number) {
  auto node = calls_.extract(number);
  Call& call = node.mapped();
  loop_.unwatch(call.watch);
  loop_.cancel(call.late);
  int status = 0;
  while (::waitpid(call.child, &status, 0) < 0 && errno == EINTR) {
  }
  std::array<char, 512> said{};
  const ssize_t n = ::read(call.output.get(), said.data(), said.size());
  if (call.done)
    call.done(
        read_answer({said.data(), n > 0 ? static_cast<std::size_t>(n) : 0}, call.action, status));
}

/// One that the driver holds ends when the driver lets go of it.
void Checkpointer::passed(std::uint64_t number, Duration limit) {
  Call& call = calls_.at(number);
  ::kill(call.child, SIGKILL);
  const Done done = std::exchange(call.done, nullptr);
  done({{Code::kDeadlineExceeded, std::string("the driver's ") + name_of(call.action) +
                                      " of this process has not ended within " +
                                      format_duration(limit)},
        ProcessState::kUnknown});
}

}  // namespace amem
