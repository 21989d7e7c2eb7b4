#include "client/ctl/interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "client/ctl/exit_code.h"

namespace amem::ctl {
namespace {

void raise_event(const Fd& event) {
  const std::uint64_t one = 1;
  // Can only fail when the counter is full, and then the event is raised.
  static_cast<void>(!::write(event.get(), &one, sizeof one));
}

}  // namespace

Interrupt::Interrupt(OnTerminalStop stop) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP}) {
    if (signal == SIGTSTP && stop == OnTerminalStop::kStopsAtOnce) continue;
    // What our parent has us ignore (a shell, for a job in the background) stays ignored.
    struct sigaction current {};
    if (::sigaction(signal, nullptr, &current) == 0 && current.sa_handler != SIG_IGN) {
      sigaddset(&mask, signal);
    }
  }
  ::pthread_sigmask(SIG_BLOCK, &mask, &old_mask_);
  signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC));
  stop_event_.reset(::eventfd(0, EFD_CLOEXEC));
  happened_event_.reset(::eventfd(0, EFD_CLOEXEC));
  thread_ = std::thread([this] { wait(); });
}

Interrupt::~Interrupt() {
  raise_event(stop_event_);
  thread_.join();
  ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void Interrupt::on_signal(std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  action_ = std::move(action);
  if ((happened_ || is_to_stop_) && action_) action_();
}

void Interrupt::stop_now() {
  ::kill(::getpid(), SIGSTOP);
  is_to_stop_ = false;
}

void Interrupt::wait() {
  for (;;) {
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {stop_event_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (::read(signals_.get(), &info, sizeof info) != sizeof info) continue;
    if (happened_) ::_exit(kExitInterrupted);  // asked twice: nothing is worth waiting for
    const std::lock_guard lock(mutex_);
    if (info.ssi_signo == SIGTSTP) {
      is_to_stop_ = true;
    } else {
      happened_ = true;
      raise_event(happened_event_);
    }
    if (action_) action_();
  }
}

}  // namespace amem::ctl
