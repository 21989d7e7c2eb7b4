// Launcher: launches a kernel in a loop, in a thread of its own, and counts.
//
// The entry point is reached in one of the ways in which programs reach them. Start and Stop from
// one thread.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace amem::puppet {

class Launcher {
 public:
  explicit Launcher(CUcontext context);
  ~Launcher() { Stop(); }

  /// `way`: "linked", "ptsz" (linked, the variant for per-thread default streams), "looked-up"
  /// (through cuGetProcAddress, itself linked).
  void Start(const std::string& way);
  void Stop();
  /// Launches that ended. Throws workload::Failure when the loop did.
  std::uint64_t Count();

 private:
  using Launch = decltype(&cuLaunchKernel);
  void Run(Launch launch);

  const CUcontext context_;
  CUfunction function_ = nullptr;
  std::atomic<std::uint64_t> count_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::mutex mutex_;  // guards error_
  std::string error_;
};

}  // namespace amem::puppet
