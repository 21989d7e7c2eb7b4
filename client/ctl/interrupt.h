// Interrupt: turns SIGINT, SIGTERM and SIGHUP into a call, so that a command that waits for the
// broker can end in order and say where things stand. A second one ends the process at once. With
// kCalls also SIGTSTP, so that it can call off what it waits for before it stops.
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
  enum class OnTerminalStop { kStopsAtOnce, kCalls };
  explicit Interrupt(OnTerminalStop stop = OnTerminalStop::kStopsAtOnce);
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  /// What to do when a signal comes; at once when one has come. Runs on another thread.
  void on_signal(std::function<void()> action);

  bool happened() const { return happened_; }
  /// SIGTSTP has come: the caller is to stop_now().
  bool is_to_stop() const { return is_to_stop_; }
  /// Stops the process until somebody continues it.
  void stop_now();

  /// Readable once a signal has come; for poll.
  int fd() const { return happened_event_.get(); }

 private:
  void wait();

  sigset_t old_mask_{};
  Fd signals_;
  Fd stop_event_;
  Fd happened_event_;
  std::atomic<bool> happened_{false};
  std::atomic<bool> is_to_stop_{false};
  std::mutex mutex_;
  std::function<void()> action_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace amem::ctl
