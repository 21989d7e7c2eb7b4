#include "tests/workload/base/loop.h"

#include <utility>

#include "tests/workload/base/failure.h"

namespace amem::workload {

void Loop::Start(std::function<void()> once) {
  Stop();
  stop_ = false;
  error_.clear();
  thread_ = std::thread([this, once = std::move(once)] {
    try {
      for (; !stop_; ++count_) once();
    } catch (const Failure& failure) {
      const std::lock_guard lock(mutex_);
      error_ = failure.what();
    }
  });
}

void Loop::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

std::uint64_t Loop::Count() {
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) throw Failure("the loop ended: " + error_);
  return count_;
}

}  // namespace amem::workload
