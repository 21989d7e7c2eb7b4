// TargetThreads: threads that work a round when they are told to, and wait in between.
//
// They live until the process ends, and fail() ends it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace amem {

class TargetThreads {
 public:
  /// From the first thread on this object lives until the process ends.
  TargetThreads() = default;
  TargetThreads(const TargetThreads&) = delete;
  TargetThreads& operator=(const TargetThreads&) = delete;

  /// A thread whose work is this, each round.
  void add(std::function<void(unsigned round)> work) {
    ++threads_;
    std::thread([this, work = std::move(work)] {
      for (unsigned round = 1;; ++round) {
        std::unique_lock lock(mutex_);
        begins_.wait(lock, [&] { return round_ >= round; });
        lock.unlock();
        work(round);
        lock.lock();
        if (--missing_ == 0) ended_.notify_all();
      }
    }).detach();
  }

  /// All work once, side by side. Returns when all have.
  void work() {
    std::unique_lock lock(mutex_);
    ++round_;
    missing_ = threads_;
    begins_.notify_all();
    ended_.wait(lock, [&] { return missing_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable begins_;
  std::condition_variable ended_;
  unsigned round_ = 0;
  std::size_t threads_ = 0;
  std::size_t missing_ = 0;  // of this round
};

}  // namespace amem
