// Closer: a thread that closes descriptors, in order.
//
// Closing the last descriptor of device memory frees it, in the GPU's driver, which may take long
// or hang; whoever gives it here goes on. All functions from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "common/fd.h"

namespace amem {

class Closer {
 public:
  Closer();
  /// Waits until everything that it was given is closed.
  ~Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

  void close(Fd fd);
  /// Runs `job` on the closer's thread when everything that came before is closed.
  void then(std::function<void()> job);
  /// The descriptor is given here when the last who has it lets go. The closer outlives it.
  SharedFd shared(Fd fd);

 private:
  struct Job {
    Fd fd;
    std::function<void()> work;
  };
  void add(Job job);
  void run();

  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<Job> jobs_;  // under mutex_
  bool ends_ = false;     // under mutex_
  std::thread thread_;    // last: it uses the others
};

}  // namespace amem
