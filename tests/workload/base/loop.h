// Loop: does one thing without end, in a thread of its own, and counts. One thread uses it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace amem::workload {

class Loop {
 public:
  ~Loop() { Stop(); }

  /// In place of what it did before. What `once` throws ends it.
  void Start(std::function<void()> once);
  void Stop();
  /// How often it was done in all. Throws Failure when the loop has ended by itself.
  std::uint64_t Count();

 private:
  std::atomic<std::uint64_t> count_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::mutex mutex_;  // guards error_
  std::string error_;
};

}  // namespace amem::workload
