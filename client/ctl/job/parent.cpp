#include "client/ctl/job/parent.h"

#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "client/core/control_client.h"
#include "client/ctl/exit_code.h"
#include "client/ctl/job/job_memory.h"
#include "client/ctl/job/process_tree.h"
#include "client/ctl/output.h"
#include "common/fd.h"
#include "common/status.h"

namespace amem::ctl {
namespace {

using std::chrono::milliseconds;

/// For all processes of the job to get a signal. A job that starts processes faster goes on.
constexpr milliseconds kSignalLimit{5'000};

void say(const std::string& line) { std::fprintf(stderr, "amemctl: %s\n", line.c_str()); }

sigset_t set_of(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

sigset_t signals_of_job() { return set_of({SIGTSTP, SIGCONT, SIGCHLD, SIGTERM, SIGHUP}); }

/// It has been sent, and not been read.
bool pends(int signal) {
  sigset_t set;
  return ::sigpending(&set) == 0 && sigismember(&set, signal) == 1;
}

/// A pause or resume, on a thread of its own.
class Work {
 public:
  enum class Kind { kPause, kResume };

  explicit Work(JobMemory& memory) : memory_(memory), ended_(::eventfd(0, EFD_CLOEXEC)) {}
  ~Work() {
    if (!thread_.joinable()) return;
    memory_.cancel();
    thread_.join();
  }
  Work(const Work&) = delete;

  /// REQUIRES: nothing is under way.
  void begin(Kind kind) {
    memory_.allow();
    kind_ = kind;
    thread_ = std::thread([this, kind] {
      status_ = kind == Kind::kPause ? memory_.pause() : memory_.resume();
      const std::uint64_t one = 1;
      static_cast<void>(!::write(ended_.get(), &one, sizeof one));  // it can only be full
    });
  }
  void cancel() { memory_.cancel(); }
  /// Nothing: nothing is under way.
  std::optional<Kind> kind() const { return kind_; }
  /// Readable once it has ended.
  int fd() const { return ended_.get(); }
  /// REQUIRES: fd() is readable.
  Status take() {
    std::uint64_t count = 0;
    static_cast<void>(!::read(ended_.get(), &count, sizeof count));
    thread_.join();
    kind_.reset();
    return std::move(status_);
  }

 private:
  JobMemory& memory_;
  Fd ended_;
  std::optional<Kind> kind_;
  Status status_;  // of the thread until it has ended
  std::thread thread_;
};

class Parent {
 public:
  /// `before`: the signals that the command is to have blocked.
  Status start(const Job& job, const sigset_t& before);
  /// Until the command has ended. Returns its status, as waitpid() gives it.
  int run();

 private:
  enum class Wanted { kRuns, kPausesAndStops, kStops };

  void on_signal(const signalfd_siginfo& info);
  void reap();
  /// Does what comes next, whenever something has happened.
  void go_on();
  void worked(const Status& status, Work::Kind kind);
  /// Stops the job and this process. Returns when it is continued, and the job is, too.
  void stop();
  /// The command has stopped without this process.
  void stop_with(int signal);
  void wait_while_stopped();

  std::unique_ptr<client::ControlClient> broker_;
  std::unique_ptr<JobMemory> memory_;
  std::unique_ptr<Work> work_;
  Fd signals_;
  pid_t child_ = 0;
  Wanted wanted_ = Wanted::kRuns;
  std::optional<int> ended_;
};

Status Parent::start(const Job& job, const sigset_t& before) {
  // Whoever is above may have had some of them ignored, as nohup does. The command inherits that.
  sigset_t defaults = set_of({});
  for (const int signal : {SIGINT, SIGQUIT, SIGTTIN, SIGTTOU}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&defaults, signal);
    ::signal(signal, SIG_IGN);
  }
  ::signal(SIGTSTP, SIG_IGN);  // for the command. One that is blocked comes all the same
  const sigset_t mask = signals_of_job();
  signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC));
  if (!signals_) return errno_status(Code::kInternal, "signalfd", errno);
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
    return errno_status(Code::kInternal, "PR_SET_CHILD_SUBREAPER", errno);

  std::vector<char*> argv;
  for (const std::string& argument : job.program)
    argv.push_back(const_cast<char*>(argument.c_str()));  // posix_spawnp does not write to them
  argv.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigmask(&attributes, &before);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = ::posix_spawnp(&child_, argv[0], nullptr, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    errno = error;
    return errno_status(error == ENOENT ? Code::kNotFound : Code::kInternal, job.program.front(),
                        error);
  }
  if (job.socket.empty()) return {};
  broker_ = std::make_unique<client::ControlClient>(job.socket);
  memory_ = std::make_unique<JobMemory>(*broker_, job.group, say);
  work_ = std::make_unique<Work>(*memory_);
  return {};
}

int Parent::run() {
  while (!ended_) {
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {work_ ? work_->fd() : -1, POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[0].revents != 0) {
      signalfd_siginfo info;
      if (::read(signals_.get(), &info, sizeof info) == sizeof info) on_signal(info);
    }
    if (fds[1].revents != 0) {
      const Work::Kind kind = *work_->kind();
      worked(work_->take(), kind);
    }
    if (!ended_) go_on();
  }
  return *ended_;
}

void Parent::on_signal(const signalfd_siginfo& info) {
  switch (static_cast<int>(info.ssi_signo)) {
    case SIGTSTP:
      // Asked twice: whatever the memory does.
      if (wanted_ != Wanted::kRuns) return stop();
      wanted_ = work_ != nullptr ? Wanted::kPausesAndStops : Wanted::kStops;
      return;
    case SIGCONT:
      wanted_ = Wanted::kRuns;
      // By SIGSTOP, as a scheduler sends it, what is in other sessions has stopped, too.
      static_cast<void>(signal_all_below(SIGCONT, kSignalLimit));
      return;
    case SIGCHLD:
      return reap();
    default:
      ::kill(child_, static_cast<int>(info.ssi_signo));
  }
}

void Parent::reap() {
  int status = 0;
  for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
    if (pid != child_) continue;  // what it had started, and left to this process
    if (!WIFSTOPPED(status))
      ended_ = status;
    else if (!pends(SIGCONT))  // else it is continued, too
      stop_with(WSTOPSIG(status));
  }
}

void Parent::go_on() {
  if (work_ != nullptr && work_->kind()) {
    if (*work_->kind() == Work::Kind::kResume && wanted_ != Wanted::kRuns) work_->cancel();
    return;
  }
  if (wanted_ == Wanted::kPausesAndStops) {
    wanted_ = Wanted::kStops;
    return work_->begin(Work::Kind::kPause);
  }
  if (wanted_ == Wanted::kStops) stop();
  if (work_ != nullptr && memory_->paused()) work_->begin(Work::Kind::kResume);
}

void Parent::worked(const Status& status, Work::Kind kind) {
  if (status.code() == Code::kCancelled) return;
  if (kind == Work::Kind::kResume)
    say("the GPU memory is back");
  else if (!status.ok())
    say("the command's GPU memory stays: " + status.text());
  else if (memory_->paused())
    say("the command's GPU memory is free");
}

void Parent::stop() {
  const std::set<pid_t> refused = signal_all_below(SIGSTOP, kSignalLimit);
  if (!refused.empty())
    say(std::to_string(refused.size()) +
        " processes of the command belong to other users and run on");
  wait_while_stopped();
  static_cast<void>(signal_all_below(SIGCONT, kSignalLimit));
}

void Parent::stop_with(int signal) {
  say("the command has stopped by itself (" + std::string(::strsignal(signal)) +
      "), so its GPU memory stays");
  wait_while_stopped();
}

/// SIGTSTP would do nothing in an orphaned process group.
void Parent::wait_while_stopped() {
  if (!pends(SIGCONT)) ::kill(::getpid(), SIGSTOP);
  wanted_ = Wanted::kRuns;
}

}  // namespace

JobSignals::JobSignals() {
  const sigset_t mask = signals_of_job();
  ::pthread_sigmask(SIG_BLOCK, &mask, &before_);
}

int run_as_parent(const Job& job, const JobSignals& signals, bool json) {
  int status = 0;
  {
    Parent parent;
    if (const Status started = parent.start(job, signals.before()); !started.ok()) {
      write_error(started, json);
      return started.code() == Code::kNotFound ? kExitCommandNotFound : kExitCannotExecute;
    }
    status = parent.run();
  }
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);  // the command has written one
  ::signal(WTERMSIG(status), SIG_DFL);
  const sigset_t one = set_of({WTERMSIG(status)});
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(WTERMSIG(status));
  return kExitFailed;
}

}  // namespace amem::ctl
