// DeepCalls: what becomes of the program's calls while the driver may have put this process away (a
// deep pause). A call that reaches the driver then waits there for the resume.
//
// From delay_calls() to end() the gate is shut, so nobody gives the devices work through it. Calls
// that give a device something to do without passing the gate (host functions, external semaphores)
// wait for end(). From goes_away() on, which says that all work has ended:
//
// - Calls that only free or destroy are noted. end() makes them, in their order, before the gate
//   opens. A noted call takes 48 bytes.
// - Calls that ask whether work has ended need no driver: it has. They must not reach it: the
//   driver's lock does not hold them, and its checkpoint then ends the process (driver 580).
//
// Before goes_away() both go to the driver as usual: what they wait for may need their answer.
//
// on() is for the fast path of these calls: one load. delay_calls(), goes_away(), end(): the
// service thread; process_ends(): the thread that calls exit(); the rest: any thread. One per
// process, never destroyed.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace amem::shim {

class DeepCalls {
 public:
  static constexpr std::size_t kMostWords = 4;
  using Words = std::array<std::uint64_t, kMostWords>;

  struct Call {
    const char* name;  // for messages
    CUresult (*make)(const Words& arguments);
    Words arguments;
  };

  static DeepCalls& get();
  /// Some calls wait, are noted or are answered here.
  static bool on() noexcept { return state() != State::kOff; }
  /// The driver may put the process away, or has.
  static bool away() noexcept { return state() == State::kAway; }

  /// Returns true if the call is made later; the program is told that it has succeeded. Returns
  /// false if the caller must make it now.
  bool note(const Call& call) noexcept;
  /// Whether the work that a call asks about has ended. Nothing: only the driver knows, once it is
  /// back. `event`: it asks about an event.
  std::optional<CUresult> ended(bool event) noexcept;
  /// Waits for end(). CUDA_ERROR_DEINITIALIZED: the process is ending.
  CUresult await_end() noexcept;
  /// Other processes may record events of this one, or this one has theirs: nothing is known of
  /// events any more.
  static void shares_events() noexcept { shares_events_.store(true, std::memory_order_relaxed); }

  /// Around a call that gives a device something to do and passes no gate. Waits for end().
  class Delayed {
   public:
    Delayed() noexcept : result_(get().enter()) {}
    ~Delayed() {
      if (result_ == CUDA_SUCCESS) get().leave();
    }
    Delayed(const Delayed&) = delete;
    Delayed& operator=(const Delayed&) = delete;
    /// CUDA_ERROR_DEINITIALIZED: the process is ending.
    CUresult result() const { return result_; }

   private:
    CUresult result_;
  };

  /// From here on no call gives a device anything to do. False: one that began before is not done
  /// by then.
  bool delay_calls(std::chrono::steady_clock::time_point until);
  /// After delay_calls(): all work of the process has ended, and the driver may put the process
  /// away.
  void goes_away();
  /// The driver makes calls again. `make`: makes a noted one.
  void end(const std::function<void(const Call&)>& make);

  /// Nobody waits any more.
  void process_ends();
  /// In a child of fork nothing is noted and nobody waits.
  static void reset_after_fork();

 private:
  enum class State : std::uint8_t { kOff, kDelays, kAway };
  static State state() noexcept { return state_.load(std::memory_order_relaxed); }
  CUresult enter() noexcept;
  void leave() noexcept;

  static std::atomic<State> state_;
  static std::atomic<bool> shares_events_;

  std::atomic<unsigned> inside_{0};  // calls of Delayed
  std::mutex mutex_;                 // guards everything below, and every change of state_
  std::condition_variable changed_;
  bool ending_ = false;
  std::vector<Call> noted_;
};

}  // namespace amem::shim
