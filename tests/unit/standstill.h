// Standstill: whether a thread of this process waits for another one, by the kernel's word.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace sim_test {

/// A thread says here(); another one can then wait until it stands still in a lock.
class Standstill {
 public:
  void Here() { thread_ = gettid(); }

  /// False after 20 s.
  bool Await() const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!InLock()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  bool InLock() const {
    if (thread_ == 0) return false;
    std::ifstream file("/proc/self/task/" + std::to_string(thread_) + "/syscall");
    long call = -1;  // stays so when the thread runs, or has ended
    file >> call;
    return call == SYS_futex;
  }

  std::atomic<pid_t> thread_{0};
};

}  // namespace sim_test
