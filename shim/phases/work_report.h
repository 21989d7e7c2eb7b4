// WorkReport: tells the broker, where it wants to know, whether calls of this process wait at the
// gate, and whether the process gives its devices work. With this the broker lets groups take
// turns.
//
// A thread of its own sees to it, from the first time that the broker asks. Calls that wait are
// told at once, work once a second, and only what has changed. The devices are asked only after a
// second in which no call has passed, and no more once they had nothing left to do.
//
// set() and stop(): the service thread, and the one that calls exit().
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "shim/driver/local_devices.h"
#include "shim/gate/gate.h"
#include "shim/session/session.h"

namespace amem::shim {

class WorkReport {
 public:
  using Clock = Gate::Clock;

  struct Times {
    std::chrono::milliseconds look{1000};  // between two looks for work
    /// For so long no call must have waited before the broker hears that none does: while a pause
    /// lets callers through one by one, they would else be told one by one.
    std::chrono::milliseconds debounce{50};
  };

  WorkReport(LocalDevices& devices, Gate& gate, Session& session)
      : WorkReport(devices, gate, session, Times()) {}
  WorkReport(LocalDevices& devices, Gate& gate, Session& session, Times times)
      : devices_(devices), gate_(gate), session_(session), times_(times) {}

  /// On: tells the state at once, also where it is on already. Off: nothing is sent any more.
  void set(bool on);
  /// The driver is about to end, and is not asked any more. What is being asked is waited for, at
  /// most until `deadline`.
  void stop(Clock::time_point deadline);

 private:
  void run();
  Clock::time_point look(Clock::time_point now);
  bool has_work();
  bool asks_devices();
  void tell();

  LocalDevices& devices_;
  Gate& gate_;
  Session& session_;
  const Times times_;

  std::mutex mutex_;  // guards what follows; never held over the driver
  std::condition_variable answered_;
  bool started_ = false;
  bool on_ = false;
  bool due_ = false;  // the state must be sent although it has not changed
  bool stopped_ = false;
  bool asking_ = false;

  // The thread's own.
  std::uint64_t waits_ = 0;               // the gate's, when it last looked
  bool waiting_ = false;                  // a call waits, or did a moment ago
  const char* call_ = nullptr;            // the first of them
  Clock::time_point none_waits_since_{};  // while waiting_; zero: one waits
  bool worked_ = false;
  bool told_waiting_ = false;
  bool told_worked_ = false;
  bool devices_idle_ = false;  // since the last call that passed the devices had nothing left to do
  Clock::time_point next_look_{};
};

}  // namespace amem::shim
