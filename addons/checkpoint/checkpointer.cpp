#include "addons/checkpoint/checkpointer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "daemon/base/child.h"
#include "daemon/base/own_program.h"

namespace amem {
namespace {

using std::chrono::milliseconds;

/// For a killed program's end: the kernel may have to wait for the GPU's driver first.
constexpr Duration kEnd = std::chrono::seconds(2);
constexpr int kExitNoDriver = 3;

std::uint64_t ms_of(Duration duration) {
  return static_cast<std::uint64_t>(
      std::chrono::ceil<milliseconds>(std::max(duration, Duration::zero())).count());
}

std::optional<CheckpointAnswer> find_answer(const std::string& said, CheckpointAction action,
                                            int pid) {
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    const std::optional<CheckpointAnswer> answer = answer_of(line);
    if (answer && answer->action == action && answer->pid == pid) return answer;
  }
  return std::nullopt;
}

}  // namespace

Checkpointer::Checkpointer(EventLoop& loop, std::string program)
    : loop_(loop),
      program_(program.empty() ? program_beside(kCheckpointProgram) : std::move(program)) {}

Checkpointer::~Checkpointer() {
  for (const auto& [id, call] : calls_)
    if (call.child != 0) ::kill(call.child, SIGKILL);
  const Time until = Clock::now() + kLastEnd;
  while (!calls_.empty()) {
    Call& call = calls_.begin()->second;
    // One that has not ended in time is left to init.
    if (call.child != 0) reap_until(call.child, call.process.get(), call.exit, until);
    forget(calls_.begin());
  }
}

std::size_t Checkpointer::running() const {
  return static_cast<std::size_t>(std::count_if(
      calls_.begin(), calls_.end(), [](const auto& each) { return each.second.child != 0; }));
}

void Checkpointer::call(pid_t pid, CheckpointAction action, Time deadline, Done done) {
  const std::uint64_t id = next_++;
  Call& call = calls_[id];
  call.pid = pid;
  call.action = action;
  call.began = Clock::now();
  call.deadline = deadline;
  call.done = std::move(done);
  if (deadline <= call.began)
    return report_later(id, {{Code::kDeadlineExceeded, what(call) + ": no time is left"}});
  if (const Status status = start(call); !status.ok()) return report_later(id, {status});
  call.writes =
      loop_.watch(call.output.get(), EPOLLIN, [this, &call](std::uint32_t) { heard(call); });
  call.ends = loop_.watch(call.process.get(), EPOLLIN, [this, id](std::uint32_t) { ended(id); });
  if (call.writes == 0 || call.ends == 0) {
    const int error = errno;
    end_now(std::exchange(call.child, 0));
    return report_later(id, {errno_status(Code::kNotFound, "epoll_ctl for " + program_, error)});
  }
  call.timer = loop_.at(deadline, [this, id] { late(id); });
}

Status Checkpointer::start(Call& call) const {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(Code::kNotFound, "pipe2", errno);
  call.output.reset(ends[0]);
  const Fd writes(ends[1]);
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0)
    return errno_status(Code::kNotFound, "fcntl", errno);
  std::vector<std::string> words = {program_, word_of(call.action), std::to_string(call.pid),
                                    "--with-parent", std::to_string(::getpid())};
  if (call.action == CheckpointAction::kLock && call.deadline != kNever) {
    const std::uint64_t wait = ms_of(call.deadline - call.began) * 3 / 4;
    words.insert(
        words.end(),
        {"--timeout-ms", std::to_string(std::clamp<std::uint64_t>(wait, 1, 24 * 3600 * 1000))});
  }
  const Result<pid_t> child = start_program(std::move(words), -1, writes.get());
  if (!child.ok()) return child.status();
  call.child = child.value();
  call.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, call.child, 0)));
  if (call.process) return {};
  const int error = errno;
  end_now(std::exchange(call.child, 0));
  return errno_status(Code::kNotFound, "pidfd_open for " + program_, error);
}

void Checkpointer::heard(Call& call) {
  char piece[kMostOutput];
  for (int i = 0; i < kReadsAtOnce && call.output; ++i) {
    const ssize_t n = ::read(call.output.get(), piece, sizeof piece);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) return stop_reading(call);
    call.said.append(piece, static_cast<std::size_t>(n));
    if (call.said.size() > kMostOutput) call.said.erase(0, call.said.size() - kMostOutput);
  }
}

void Checkpointer::stop_reading(Call& call) {
  if (call.writes != 0) loop_.unwatch(std::exchange(call.writes, 0));
  call.output.reset();
}

void Checkpointer::ended(std::uint64_t id) {
  const auto it = calls_.find(id);
  if (it == calls_.end() || !reap(it->second.child, it->second.exit)) return;
  Call& call = it->second;
  call.child = 0;
  heard(call);
  const Done done = std::move(call.done);
  const CheckpointResult result = result_of(call);
  forget(it);
  if (done) done(result);
}

void Checkpointer::late(std::uint64_t id) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;
  Call& call = it->second;
  if (!call.killed) {
    call.killed = true;
    ::kill(call.child, SIGKILL);
    call.timer = loop_.at(Clock::now() + kEnd, [this, id] { late(id); });
    return;
  }
  // The kernel cannot end it yet. It is reaped when it ends, if that is ever.
  heard(call);
  stop_reading(call);
  const Done done = std::exchange(call.done, nullptr);
  const CheckpointResult result = result_of(call);
  if (done) done(result);
}

CheckpointResult Checkpointer::result_of(const Call& call) const {
  // Whatever became of the program after its answer, the driver has done what it says.
  if (const auto answer = find_answer(call.said, call.action, call.pid)) {
    CheckpointResult result{{}, {}, answer->us, answer->state};
    if (answer->result == 0) return result;
    result.error = answer->name;
    result.status = {Code::kFailedPrecondition,
                     what(call) + ": " + answer->name + " (" + std::to_string(answer->result) +
                         "); state " + word_of(answer->state) + std::string(advice_on(*answer))};
    return result;
  }
  const std::string said = on_one_line(call.said);
  const std::string more = said.empty() ? "" : ": " + said;
  if (call.killed)
    return {{Code::kDeadlineExceeded,
             what(call) + ": no answer within " +
                 std::to_string(ms_of(call.deadline - call.began)) + " ms, " +
                 (call.child == 0 ? "killed" : "killed, but the kernel cannot end it") + more}};
  if (WIFEXITED(call.exit) && WEXITSTATUS(call.exit) == kExitNoDriver)
    return {{Code::kUnavailable, said.empty() ? what(call) + ": no driver" : said}};
  return {{Code::kInternal,
           what(call) + " ended without an answer (" + describe_exit(call.exit) + ")" + more}};
}

std::string Checkpointer::what(const Call& call) const {
  return program_.substr(program_.rfind('/') + 1) + " " + word_of(call.action) + " " +
         std::to_string(call.pid);
}

void Checkpointer::report_later(std::uint64_t id, CheckpointResult result) {
  calls_.at(id).timer = loop_.at(Clock::now(), [this, id, result = std::move(result)] {
    const auto it = calls_.find(id);
    const Done done = std::move(it->second.done);
    forget(it);
    done(result);
  });
}

void Checkpointer::forget(Calls::iterator it) {
  Call& call = it->second;
  stop_reading(call);
  if (call.ends != 0) loop_.unwatch(call.ends);
  loop_.cancel(call.timer);
  calls_.erase(it);
}

}  // namespace amem
