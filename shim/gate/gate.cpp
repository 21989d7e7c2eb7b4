#include "shim/gate/gate.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "shim/base/log.h"
#include "shim/base/no_cancel.h"
#include "shim/gate/wait_log.h"

namespace amem::shim {
namespace {

/// How long an interpreter may be ending before a waiting caller sees it.
constexpr std::chrono::milliseconds kInterpreterCheck{100};
constexpr std::chrono::microseconds kWatchAgain{200};
constexpr std::chrono::seconds kDrainBegins{1};
/// A question takes microseconds. This is for a driver that blocks.
constexpr std::chrono::seconds kQuestionEnds{10};

/// Who only frees passes a gate in this mode.
constexpr bool frees_pass(Gate::Mode mode) {
  return mode == Gate::Mode::kFreesPass || mode == Gate::Mode::kFailed;
}

long membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0); }

pthread_key_t exit_key;
bool has_exit_key = false;  // a process has 1024 keys at most
pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;

}  // namespace

thread_local Gate::ThreadState* Gate::state_ = nullptr;
std::atomic<Gate::ThreadState*> Gate::threads_{nullptr};

Gate::ThreadState* Gate::register_thread() noexcept {
  // A record goes back when its thread ends, through a pthread key: thread_local destructors would
  // run too early for libraries that still call the driver from theirs. Without a key it stays
  // taken.
  pthread_once(&exit_key_once, [] {
    has_exit_key =
        pthread_key_create(&exit_key, [](void* record) {
          state_ = nullptr;
          static_cast<ThreadState*>(record)->taken.store(false, std::memory_order_release);
        }) == 0;
  });
  ThreadState* record = threads_.load(std::memory_order_acquire);
  for (; record != nullptr; record = record->next) {
    bool free = false;
    if (record->taken.compare_exchange_strong(free, true, std::memory_order_acquire)) break;
  }
  if (record == nullptr) {
    record = new (std::nothrow) ThreadState;
    if (record == nullptr) std::abort();
    record->next = threads_.load(std::memory_order_relaxed);
    while (!threads_.compare_exchange_weak(record->next, record, std::memory_order_release)) {
    }
  }
  record->depth = 0;
  record->watches.store(0, std::memory_order_relaxed);
  if (has_exit_key) pthread_setspecific(exit_key, record);
  return record;
}

void Gate::prepare(const Policy& policy) {
  policy_ = policy;
  wait_log().prepare(policy.group, policy.reminder);
  if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) != 0)
    fence_needed_.store(true, std::memory_order_relaxed);
}

CUresult Gate::wait(ThreadState& self, Caller caller, const Submission& submission) noexcept {
  const NoCancel no_cancel;
  Waiter waiter = waiter_of(caller, submission);
  Lock lock(mutex_);
  begin_wait(self, waiter);
  const CUresult result = await_answer(waiter, lock);
  end_wait(self, waiter, result, lock);
  lock.unlock();
  if (result == CUDA_ERROR_TIMEOUT)
    log_error(
        "a CUDA call fails after waiting " +
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(policy_.timeout).count()) +
        " s for the resume of its group. Resume it (amemctl resume GROUP), or set a "
        "longer time in AMEM_GATE");
  return result;
}

/// Before the lock is taken: it asks the driver and the interpreter.
Gate::Waiter Gate::waiter_of(Caller caller, const Submission& submission) const {
  Waiter waiter;
  waiter.caller = caller;
  const bool asks = policy_.current_device != nullptr && mode() != Mode::kAway;
  const int ordinal = asks ? policy_.current_device() : 0;
  waiter.submission = submission;
  if (ordinal >= 0)
    waiter.device = static_cast<std::size_t>(ordinal);
  else
    waiter.submission.on_stream = false;
  // Asked now: an interpreter that has ended no longer knows its threads.
  waiter.with_interpreter =
      policy_.ends_with_interpreter != nullptr && policy_.ends_with_interpreter();
  return waiter;
}

void Gate::count_demand(bool begins, const char* call) {
  if (begins) {
    if (demanding_++ == 0) demand_.call = call;
    ++demand_.waits;
  } else if (--demanding_ > 0) {
    return;
  }
  ++demand_version_;
  demanded_.notify_all();
}

void Gate::begin_wait(ThreadState& self, Waiter& waiter) {
  // While a capture is open it does not wait.
  waiter.demands = gives_work(waiter.caller) && shut() && captures_ == 0;
  if (waiter.demands) count_demand(true, waiter.submission.call);
  self.mark.store(0, std::memory_order_release);
  self.depth = 0;  // a signal handler that calls exit() comes here again, and must not pass
  if (waiter.in_line()) {
    Waiter** link = &first_waiter_;
    while (*link != nullptr) link = &(*link)->next;
    *link = &waiter;
  }
  ++version_;
  watcher_.notify_all();
}

std::optional<CUresult> Gate::answer_to(const Waiter& waiter) const {
  const bool frees = waiter.caller == Caller::kFrees;
  if (!shut() || captures_ > 0 || waiter.permitted || (frees && frees_pass(mode())))
    return CUDA_SUCCESS;
  if (mode() == Mode::kFailed) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (mode() != Mode::kShut && !policy_.wait && !frees) return CUDA_ERROR_NOT_READY;
  if (ends(waiter.with_interpreter)) return CUDA_ERROR_DEINITIALIZED;
  return std::nullopt;
}

/// It asks the driver and writes to the log, where it must, without the lock.
CUresult Gate::await_answer(Waiter& waiter, Lock& lock) {
  bool said = waiter.caller == Caller::kFrees;  // what only frees waits for no resume
  std::uint64_t shuts = shuts_;
  Clock::time_point began = Clock::now();
  for (;;) {
    if (const std::optional<CUresult> answer = answer_to(waiter)) return *answer;
    if (waiter.state == Waiter::State::kAsked) {
      lock.unlock();
      const bool is_ready = ready(waiter);
      lock.lock();
      waiter.ready = is_ready;
      waiter.state = Waiter::State::kWaits;
      watcher_.notify_all();
      continue;
    }
    const Clock::time_point now = Clock::now();
    // It has been open meanwhile, for too short a time: this is another wait.
    if (std::exchange(shuts, shuts_) != shuts_) began = now;
    const Clock::time_point deadline =
        policy_.timeout.count() > 0 ? began + policy_.timeout : Clock::time_point::max();
    if (now >= deadline) return CUDA_ERROR_TIMEOUT;
    if (mode() != Mode::kShut && !std::exchange(said, true)) {
      lock.unlock();
      wait_log().waits_for_itself(waiter.submission.call);
      lock.lock();
      continue;
    }
    if (wait_log().due(began, now)) {
      lock.unlock();
      wait_log().still_waits("calls of this process wait", began, now);
      lock.lock();
      continue;
    }
    Clock::time_point until = std::min(deadline, wait_log().next(began));
    if (policy_.interpreter_ends != nullptr) until = std::min(until, now + kInterpreterCheck);
    waiters_.wait_until(lock, until);
  }
}

void Gate::end_wait(ThreadState& self, Waiter& waiter, CUresult result, Lock& lock) {
  if (waiter.in_line()) {
    waiter.state = Waiter::State::kLeaves;
    if (looked_at_ == &waiter) {
      watcher_.notify_all();
      // Waits while the driver works; this caller's own call would not get through any sooner.
      watcher_.wait(lock, [&] { return looked_at_ != &waiter; });
    }
    Waiter** link = &first_waiter_;
    while (*link != &waiter) link = &(*link)->next;
    *link = waiter.next;
  }
  if (waiter.permitted) ++permits_used_;
  if (waiter.demands) count_demand(false, nullptr);
  if (result == CUDA_SUCCESS) {
    self.mark.store(gives_work(waiter.caller) ? kInside | kWorked : kInside,
                    std::memory_order_relaxed);
    self.depth = 1;
    ++passes_;
  }
  ++version_;
  watcher_.notify_all();
}

void Gate::close() {
  {
    std::lock_guard lock(mutex_);
    for (Waiter* w = first_waiter_; w != nullptr; w = w->next) w->permitted = false;
    permits_used_ = 0;
    ++shuts_;
    wait_log().shut();
    ++passes_;
    ++version_;
    if (mode() != Mode::kFailed) mode_.store(Mode::kShut, std::memory_order_seq_cst);
  }
  fence();
}

void Gate::set(Mode mode) {
  {
    std::lock_guard lock(mutex_);
    if (this->mode() == Mode::kFailed || (!shut() && mode != Mode::kFailed)) return;
    if (mode == Mode::kOpen) {
      wait_log().opened();
      opened_.store(true, std::memory_order_relaxed);
    }
    mode_.store(mode, std::memory_order_seq_cst);
    ++version_;
    waiters_.notify_all();
    watcher_.notify_all();
  }
  if (mode == Mode::kFailed) fence();
}

/// Every thread that has not passed sees the new mode.
void Gate::fence() noexcept {
  if (!fence_needed_.load(std::memory_order_relaxed)) membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  changed();
}

bool Gate::await_empty(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return watcher_.wait_for(lock, patience, [&] { return !any_active(); });
}

void Gate::end() {
  std::lock_guard lock(mutex_);
  ending_ = true;
  waiters_.notify_all();
}

/// Whether a waiting caller is to hear that the process is ending. One that ends with its
/// interpreter is not: back there it would be ended in the middle of C++ that may not expect it,
/// and abort the process. Nobody waits for such a thread.
bool Gate::ends(bool with_interpreter) const {
  if (policy_.interpreter_ends != nullptr && policy_.interpreter_ends()) return !with_interpreter;
  return ending_;
}

void Gate::permit(int ordinal, bool in_turn) {
  const auto device = static_cast<std::size_t>(ordinal < 0 ? 0 : ordinal);
  std::lock_guard lock(mutex_);
  ++version_;
  Waiter* chosen = nullptr;
  for (Waiter* w = first_waiter_; w != nullptr; w = w->next) {
    if (w->device != device || w->permitted) continue;
    if (chosen == nullptr || w->ready) chosen = w;
    if (w->ready || in_turn) break;
  }
  if (chosen != nullptr) {
    chosen->permitted = true;
    waiters_.notify_all();
  } else {
    ++permits_used_;
    watcher_.notify_all();
  }
}

void Gate::capture_began() {
  std::lock_guard lock(mutex_);
  ++captures_;
  ++version_;
  waiters_.notify_all();
  watcher_.notify_all();
}

void Gate::capture_ended() {
  std::lock_guard lock(mutex_);
  if (captures_ > 0) --captures_;
  ++version_;
  watcher_.notify_all();
}

std::uint32_t Gate::captures() {
  std::lock_guard lock(mutex_);
  return captures_;
}

bool Gate::drain_begins() {
  std::lock_guard lock(mutex_);
  if (!shut() || captures_ > 0 || any_active()) return false;
  ++drains_;
  captures_wait_ = Clock::now() + kDrainBegins;
  return true;
}

void Gate::drain_ended() {
  std::lock_guard lock(mutex_);
  --drains_;
  drained_.notify_all();
}

/// A capture that is about to begin is inside, and has taken the lock since, or takes it after this
/// and waits. The thread is inside meanwhile: a pause waits for it, too.
bool Gate::question_begins() {
  ThreadState& self = this_thread();
  std::lock_guard lock(mutex_);
  if (shut() || captures_ > 0 || any_active()) return false;
  ++self.depth;
  enter_quietly(self);
  ++drains_;
  captures_wait_ = Clock::now() + kQuestionEnds;
  return true;
}

void Gate::question_ended() {
  drain_ended();
  leave_quietly();
}

/// Only the beginning of a drain does harm, and nobody sees it inside the driver: it is there after
/// so long.
void Gate::await_drains() noexcept {
  const NoCancel no_cancel;
  std::unique_lock lock(mutex_);
  drained_.wait_until(lock, captures_wait_, [&] { return drains_ == 0; });
}

bool Gate::any_active() const {
  for (ThreadState* t = threads_.load(std::memory_order_acquire); t != nullptr; t = t->next)
    if ((t->mark.load(std::memory_order_acquire) & kInside) != 0) return true;
  return false;
}

bool Gate::await_watches(Clock::time_point until) {
  fence();
  const auto watched = [] {
    for (ThreadState* t = threads_.load(std::memory_order_acquire); t != nullptr; t = t->next)
      if (t->watches.load(std::memory_order_acquire) > 0) return true;
    return false;
  };
  while (watched()) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(kWatchAgain);
  }
  return true;
}

bool Gate::take_worked() noexcept {
  bool worked = false;
  for (ThreadState* t = threads_.load(std::memory_order_acquire); t != nullptr; t = t->next) {
    std::uint8_t mark = t->mark.load(std::memory_order_relaxed);
    worked = worked || (mark & kWorked) != 0;
    // Who is inside keeps its mark, and writes another one when it leaves.
    if (mark == kWorked) t->mark.compare_exchange_strong(mark, 0, std::memory_order_relaxed);
  }
  return worked;
}

bool Gate::ready(const Waiter& waiter) const {
  return !waiter.submission.on_stream || policy_.stream_idle == nullptr ||
         policy_.stream_idle(static_cast<int>(waiter.device), waiter.submission.stream);
}

/// Asks the driver, which may block, without the lock. The waiter does not leave meanwhile: its
/// stream lives until it does.
void Gate::look_at(Waiter& waiter, Lock& lock) {
  looked_at_ = &waiter;
  if (waiter.submission.on_stream && waiter.submission.stream == CU_STREAM_PER_THREAD) {
    waiter.state = Waiter::State::kAsked;
    waiters_.notify_all();
    // It answers at once, or leaves; else the driver keeps it, as it would keep us.
    watcher_.wait(lock, [&] { return waiter.state != Waiter::State::kAsked; });
  } else {
    lock.unlock();
    const bool is_ready = ready(waiter);
    lock.lock();
    waiter.ready = is_ready;
  }
  looked_at_ = nullptr;
  watcher_.notify_all();
}

Gate::Snapshot Gate::snapshot() {
  Lock lock(mutex_);
  Snapshot now;
  do {
    now = {any_active(), passes_, permits_used_, captures_, {}};
    // Beside a caller that is inside the driver, or captures, nothing is asked of the driver: it
    // may be waiting there for the device.
    const bool ask = !now.any_active && captures_ == 0;
    for (Waiter* w = first_waiter_; w != nullptr; w = w->next) {
      if (w->state == Waiter::State::kLeaves) continue;
      if (ask) look_at(*w, lock);
      if (now.waiting.size() <= w->device) now.waiting.resize(w->device + 1);
      Snapshot::Waiting& waiting = now.waiting[w->device];
      ++waiting.callers;
      if (ask && w->ready) ++waiting.ready;
    }
    // Whoever has passed meanwhile may have given work to a stream that was idle.
  } while (now.passes != passes_);
  return now;
}

std::uint64_t Gate::wait_change(std::uint64_t version, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  watcher_.wait_for(lock, patience, [&] { return version_ != version; });
  return version_;
}

void Gate::changed() noexcept {
  std::lock_guard lock(mutex_);
  ++version_;
  watcher_.notify_all();
}

Gate::Demand Gate::demand() {
  std::lock_guard lock(mutex_);
  Demand now = demand_;
  now.waiting = demanding_ > 0;
  return now;
}

std::uint64_t Gate::await_demand(std::uint64_t version, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  demanded_.wait_until(lock, until, [&] { return demand_version_ != version; });
  return demand_version_;
}

void Gate::stir() {
  std::lock_guard lock(mutex_);
  ++demand_version_;
  demanded_.notify_all();
}

void Gate::reset_after_fork() noexcept {
  // Only the forking thread lives on. Its lock may be held by one that does not, so it is not
  // taken: an open gate needs none.
  for (ThreadState* t = threads_.load(std::memory_order_relaxed); t != nullptr; t = t->next)
    if (t != state_) {
      t->mark.store(0, std::memory_order_relaxed);
      t->watches.store(0, std::memory_order_relaxed);
    }
  mode_.store(Mode::kOpen, std::memory_order_relaxed);
}

}  // namespace amem::shim
