// Interrupt: turns SIGINT and SIGTERM into a call, so that a command that waits for the broker can
// end in order and say where things stand. A second signal ends the process at once.
//
// Owns a thread, which makes the call. REQUIRES: made before the process has other threads (they
// inherit the blocked signals), and only once at a time.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <mutex>
#include <thread>

#include "common/fd.h"

namespace amem::ctl {

class Interrupt {
 public:
  Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  /// What to do when a signal comes; at once when one has come. Runs on another thread.
  void on_signal(std::function<void()> action);

  bool happened() const { return happened_; }

  /// Readable once a signal has come; for poll.
  int fd() const { return happened_event_.get(); }

 private:
  void wait();

  sigset_t old_mask_{};
  Fd signals_;
  Fd stop_event_;
  Fd happened_event_;
  std::atomic<bool> happened_{false};
  std::mutex mutex_;
  std::function<void()> action_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace amem::ctl
