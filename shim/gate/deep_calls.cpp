#include "shim/gate/deep_calls.h"

#include <new>
#include <utility>

#include "shim/base/no_cancel.h"

namespace amem::shim {
namespace {

/// A program that frees more has an error. What is not noted waits in the driver.
constexpr std::size_t kMostNoted = std::size_t{1} << 20;

DeepCalls* instance() {
  static auto* const calls = new DeepCalls;
  return calls;
}

}  // namespace

std::atomic<bool> DeepCalls::on_{false};
std::atomic<bool> DeepCalls::shares_events_{false};

DeepCalls& DeepCalls::get() { return *instance(); }

bool DeepCalls::note(const Call& call) noexcept {
  const std::lock_guard lock(mutex_);
  if (!on_.load(std::memory_order_relaxed)) return false;
  if (ending_) return true;  // the process's end frees everything
  if (noted_.size() >= kMostNoted) return false;
  try {
    noted_.push_back(call);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

std::optional<CUresult> DeepCalls::ended(bool event) noexcept {
  if (event && shares_events_.load(std::memory_order_relaxed)) return std::nullopt;
  const NoCancel no_cancel;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return drained_ || ending_ || !on_.load(std::memory_order_relaxed); });
  if (!on_.load(std::memory_order_relaxed)) return std::nullopt;
  return drained_ ? CUDA_SUCCESS : CUDA_ERROR_DEINITIALIZED;
}

CUresult DeepCalls::enter() noexcept {
  while (true) {
    inside_.fetch_add(1, std::memory_order_seq_cst);
    if (!on_.load(std::memory_order_seq_cst)) [[likely]]
      return CUDA_SUCCESS;
    leave();
    const NoCancel no_cancel;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ending_ || !on_.load(std::memory_order_relaxed); });
    if (on_.load(std::memory_order_relaxed)) return CUDA_ERROR_DEINITIALIZED;
  }
}

void DeepCalls::leave() noexcept {
  if (inside_.fetch_sub(1, std::memory_order_seq_cst) > 1 || !on()) return;
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

bool DeepCalls::begin(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  drained_ = false;
  on_.store(true, std::memory_order_seq_cst);
  return changed_.wait_for(lock, patience,
                           [&] { return inside_.load(std::memory_order_seq_cst) == 0; });
}

void DeepCalls::drained() {
  const std::lock_guard lock(mutex_);
  drained_ = true;
  changed_.notify_all();
}

void DeepCalls::end(const std::function<void(const Call&)>& make) {
  std::unique_lock lock(mutex_);
  while (on_.load(std::memory_order_relaxed) && !noted_.empty()) {
    const std::vector<Call> calls = std::exchange(noted_, {});
    lock.unlock();
    for (const Call& call : calls) make(call);
    lock.lock();
  }
  on_.store(false, std::memory_order_seq_cst);
  drained_ = false;
  changed_.notify_all();
}

void DeepCalls::process_ends() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

/// A thread that is not there may have the lock.
void DeepCalls::reset_after_fork() {
  on_.store(false, std::memory_order_relaxed);
  new (instance()) DeepCalls;
}

}  // namespace amem::shim
