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

std::atomic<DeepCalls::State> DeepCalls::state_{State::kOff};
std::atomic<bool> DeepCalls::shares_events_{false};

DeepCalls& DeepCalls::get() { return *instance(); }

bool DeepCalls::note(const Call& call) noexcept {
  const std::lock_guard lock(mutex_);
  if (state() != State::kAway) return false;
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
  return state() == State::kAway ? std::optional(CUDA_SUCCESS) : std::nullopt;
}

CUresult DeepCalls::enter() noexcept {
  while (true) {
    inside_.fetch_add(1, std::memory_order_seq_cst);
    if (state_.load(std::memory_order_seq_cst) == State::kOff) [[likely]]
      return CUDA_SUCCESS;
    leave();
    if (const CUresult result = await_end(); result != CUDA_SUCCESS) return result;
  }
}

CUresult DeepCalls::await_end() noexcept {
  const NoCancel no_cancel;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ending_ || !on(); });
  return on() ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

void DeepCalls::leave() noexcept {
  if (inside_.fetch_sub(1, std::memory_order_seq_cst) > 1 || !on()) return;
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

bool DeepCalls::delay_calls(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  state_.store(State::kDelays, std::memory_order_seq_cst);
  return changed_.wait_until(lock, until,
                             [&] { return inside_.load(std::memory_order_seq_cst) == 0; });
}

void DeepCalls::goes_away() {
  const std::lock_guard lock(mutex_);
  state_.store(State::kAway, std::memory_order_seq_cst);
}

void DeepCalls::end(const std::function<void(const Call&)>& make) {
  std::unique_lock lock(mutex_);
  while (on() && !noted_.empty()) {
    const std::vector<Call> calls = std::exchange(noted_, {});
    lock.unlock();
    for (const Call& call : calls) make(call);
    lock.lock();
  }
  state_.store(State::kOff, std::memory_order_seq_cst);
  changed_.notify_all();
}

void DeepCalls::process_ends() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

/// A thread that is not there may have the lock.
void DeepCalls::reset_after_fork() {
  state_.store(State::kOff, std::memory_order_relaxed);
  new (instance()) DeepCalls;
}

}  // namespace amem::shim
