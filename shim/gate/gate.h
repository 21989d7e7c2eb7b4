// Gate: what every call that gives the device work, or changes brokered memory, passes on its way
// to the driver.
//
// Open, it costs a thread-local store and one load. Shut, callers wait at it, one condition
// variable for all, until it opens, a permit lets one of them through, or their patience ends, if
// they have any; meanwhile a line in the log says once a minute that they wait (WaitLog). The gate
// also knows whether any caller that passed is still inside the driver, which is what makes
// shutting it a promise: after close() and any_active() == false no brokered call is under way.
//
// How the open gate stays cheap: a passing thread publishes "I am inside" with a plain store and
// reads the flag; the closer writes the flag and then has the kernel run a memory barrier on every
// thread of the process (membarrier). So one of the two always sees the other, and the fast path
// needs no fence of its own. Without membarrier it uses one.
//
// How the gate knows which process has work: the store with which a caller leaves says that it has
// passed, and take_worked() looks at these marks. Calls that only free or ask leave no mark.
//
// enter/leave: any thread, nestable. end: the thread that calls exit(). The rest: the shim's own
// threads. One Gate per process; never destroyed.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace amem::shim {

class Gate {
 public:
  using Clock = std::chrono::steady_clock;

  struct Policy {
    bool wait = true;                     // false: an error at once while the group is paused
    std::chrono::milliseconds timeout{};  // how long a caller waits at most; 0: no limit
    int (*current_device)() = nullptr;    // ordinal of the caller's device, -1 when it has none
    /// Whether nothing is left to do on a stream of this device. Must not pass a gate. Asked about
    /// a thread's own default stream in that thread, which alone can name it.
    bool (*stream_idle)(int device, CUstream stream) = nullptr;
    /// Whether an interpreter in the process ends, if there is one (shim/process/python.h); must
    /// not block. Asked repeatedly while callers wait: nobody reports its end.
    bool (*interpreter_ends)() = nullptr;
    /// The calling thread is one that the interpreter ends when it returns to it.
    bool (*ends_with_interpreter)() = nullptr;
    std::string group = {};                      // its name, for messages
    std::chrono::milliseconds reminder{60'000};  // between two lines that say that callers wait
  };

  /// Where a caller's work goes.
  struct Submission {
    bool on_stream = false;      // false: it is done when the call returns
    CUstream stream = nullptr;   // CU_STREAM_PER_THREAD: the caller's
    const char* call = nullptr;  // its name, if known; for messages
  };
  struct AnyWork {
    Submission operator()() const { return {}; }
  };

  /// What the cut monitor reports; one consistent reading.
  struct Snapshot {
    bool any_active = false;         // a caller that passed has not left
    std::uint64_t passes = 0;        // grows whenever a caller passes the shut gate
    std::uint32_t permits_used = 0;  // since close()
    std::uint32_t captures = 0;      // stream captures under way
    struct Waiting {
      std::uint32_t callers = 0;
      std::uint32_t ready = 0;  // their work could begin at once; not known while any is active
    };
    std::vector<Waiting> waiting;  // by device ordinal; callers without a device count as device 0
  };

  /// Who waits at the shut gate and neither only frees nor only asks.
  struct Demand {
    bool waiting = false;
    const char* call = nullptr;  // of the first one that began to wait, if its name is known
    std::uint64_t waits = 0;     // that have begun so far
  };

  /// Before the first close(). Registers for membarrier.
  void prepare(const Policy& policy);

  /// Passes the gate or waits at it. CUDA_SUCCESS: the caller must call leave(). Otherwise the
  /// caller returns the error to its own caller: CUDA_ERROR_TIMEOUT (waited too long),
  /// CUDA_ERROR_NOT_READY (policy), CUDA_ERROR_SYSTEM_NOT_READY (the broker was lost while the
  /// group was paused), CUDA_ERROR_DEINITIALIZED (the process is ending).
  /// `work`: where the caller's goes; asked only when it has to wait.
  template <class Lookup = AnyWork>
  CUresult enter(const Lookup& work = {}) noexcept {
    return pass(Caller::kWorks, work);
  }

  /// The same for a call that only frees, unmaps, releases, closes or destroys. It also passes a
  /// shut gate in the modes kFreesPass and kFailed.
  /// The caller must call leave_quietly().
  CUresult enter_to_free() noexcept { return pass(Caller::kFrees, AnyWork()); }

  /// The same for a call that only asks, as monitoring programs do all the time: it is neither work
  /// nor demand. The caller must call leave_quietly().
  template <class Lookup = AnyWork>
  CUresult enter_to_ask(const Lookup& work = {}) noexcept {
    return pass(Caller::kAsks, work);
  }

  /// The same for the beginning of a stream capture, which no permit lets through: the devices are
  /// being waited for, and that wait, begun beside an open capture, would break it. For the same
  /// reason it waits, a second at most, where such a wait was about to begin when the gate opened.
  CUresult enter_capture() noexcept {
    const CUresult result = pass(Caller::kCaptures, [] {
      return Submission{false, nullptr, "cuStreamBeginCapture"};
    });
    if (result == CUDA_SUCCESS) await_drains();
    return result;
  }

  /// A thread of ours is about to wait for a whole device. False: not now, captures may begin. Else
  /// it calls drain_ended() afterwards.
  bool drain_begins();
  void drain_ended();

  /// A thread of ours is about to ask the driver whether devices have work left, while the gate is
  /// open. False: not now. A capture is open or may begin, the gate is shut, or a caller is inside
  /// the driver. Else it calls question_ended() soon afterwards: captures and pauses wait for it.
  bool question_begins();
  void question_ended();

  void leave() noexcept { leave(kWorked); }
  /// The same for a caller that has given no work. What its thread gave before still counts.
  void leave_quietly() noexcept {
    leave(this_thread().mark.load(std::memory_order_relaxed) & kWorked);
  }

 private:
  /// The thread writes its mark with plain stores, and take_worked() clears kWorked beside it. At
  /// worst that brings back a mark that was just taken.
  struct alignas(64) ThreadState {
    std::atomic<std::uint8_t> mark{0};
    std::uint32_t depth = 0;
    std::atomic<std::uint32_t> watches{0};  // Watch objects that live
    std::atomic<bool> taken{true};
    ThreadState* next = nullptr;
  };

 public:
  /// Says for the length of a scope that the calling thread asks the driver about work, or waits
  /// there for some. That passes no gate, but who puts the process away must know.
  class Watch {
   public:
    explicit Watch(Gate& gate) noexcept : self_(this_thread()) {
      self_.watches.store(self_.watches.load(std::memory_order_relaxed) + 1,
                          std::memory_order_relaxed);
      gate.light_fence();
    }
    ~Watch() {
      self_.watches.store(self_.watches.load(std::memory_order_relaxed) - 1,
                          std::memory_order_release);
    }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    ThreadState& self_;
  };
  /// Waits until no thread is in a Watch that has begun before this call. False: not by then.
  bool await_watches(Clock::time_point until);

  /// Passes if that needs no wait, for what gives no work. True: the caller must call
  /// leave_quietly().
  bool try_enter() noexcept {
    ThreadState& self = this_thread();
    if (self.depth++ > 0) return true;
    enter_quietly(self);
    light_fence();
    if (!shut()) return true;
    leave_quietly();
    return false;
  }

  /// Whether a caller has passed since the last take_worked(), or is inside; not those that only
  /// free or ask. One thread at a time.
  bool take_worked() noexcept;

  /// Who passes. While a stream capture is under way all pass, or it could never end.
  enum class Mode : std::uint8_t {
    kOpen,
    kShut,        // nobody: a pause begins, which may be called off
    kMemoryLeft,  // nobody, and the policy may answer with an error: memory has left
    kFreesPass,   // the same, but who only frees passes: the group is paused and no phase is under
                  // way
    kAway,    // as kMemoryLeft, and the driver may have put the process away: it is asked nothing
    kFailed,  // who only frees; all others always get CUDA_ERROR_SYSTEM_NOT_READY
  };
  Mode mode() const { return mode_.load(std::memory_order_relaxed); }
  bool shut() const { return mode() != Mode::kOpen; }
  /// Shuts the gate anew: permits and waits are counted from here.
  void close();
  /// The same for a group that waits for its first turn, before this process has done anything.
  void close_before_first_turn() {
    opened_.store(false, std::memory_order_relaxed);
    close();
  }
  /// False: it was shut before the first turn, and has not opened yet.
  bool has_opened() const { return opened_.load(std::memory_order_relaxed); }
  void open() { set(Mode::kOpen); }
  /// Changes who passes a gate that is shut; an open one it only opens or fails. kFailed stays.
  void set(Mode mode);
  /// Waits until nobody who has passed the shut gate is inside. False: not in this time.
  bool await_empty(std::chrono::milliseconds patience);
  /// The calling thread has passed and not left.
  static bool inside() noexcept { return state_ != nullptr && state_->depth > 0; }
  /// The process is ending. From here on a shut gate, now or later, answers every caller with
  /// CUDA_ERROR_DEINITIALIZED, as the driver soon will. Only threads that end with their
  /// interpreter go on waiting, once that is ending.
  void end();
  /// Lets a caller with this device through, first those whose work could begin at once: the others
  /// would add to what waits already. Among equals, and `in_turn` among all, the one that has
  /// waited longest: were it any, one of two threads could take every permit, and never the one
  /// that somebody waits for. A permit that finds none is used up at once.
  void permit(int device, bool in_turn = false);

  void capture_began();
  void capture_ended();
  /// Stream captures under way.
  std::uint32_t captures();

  /// Asks the driver about streams, so it may take long; nobody else waits for it but callers whose
  /// stream is being asked about. One thread at a time.
  Snapshot snapshot();
  /// Waits until something in snapshot() may have changed since `version`, or the time is up;
  /// returns the new version.
  std::uint64_t wait_change(std::uint64_t version, std::chrono::milliseconds patience);
  /// Wakes wait_change.
  void changed() noexcept;

  Demand demand();
  /// Waits until demand() may have changed since `version`, somebody calls stir(), or until then;
  /// returns the new version.
  std::uint64_t await_demand(std::uint64_t version, Clock::time_point until);
  /// Wakes await_demand.
  void stir();

  /// In a child of fork: the gate is open and forgets the parent's threads.
  void reset_after_fork() noexcept;

 private:
  /// What a caller is about to do.
  enum class Caller : std::uint8_t { kWorks, kCaptures, kFrees, kAsks };

  /// Bits of ThreadState::mark.
  static constexpr std::uint8_t kInside = 1;
  static constexpr std::uint8_t kWorked = 2;  // since the last take_worked(), or now

  /// A caller that waits; on its stack.
  struct Waiter {
    enum class State : std::uint8_t {
      kWaits,
      kAsked,   // it must ask the driver about its stream
      kLeaves,  // it waits no longer, and nobody looks at it any more
    };
    Caller caller = Caller::kWorks;
    std::size_t device = 0;
    Submission submission;
    bool with_interpreter = false;  // its thread ends with the interpreter
    bool demands = false;           // Demand counts it
    State state = State::kWaits;
    bool ready = false;      // when snapshot() last looked
    bool permitted = false;  // a Permit is for this one
    Waiter* next = nullptr;
    /// A permit may let it through: it is in the list.
    bool in_line() const { return caller != Caller::kCaptures; }
  };

  template <class Lookup>
  CUresult pass(Caller caller, const Lookup& work) noexcept {
    ThreadState& self = this_thread();
    if (self.depth++ > 0) return CUDA_SUCCESS;
    if (gives_work(caller))
      self.mark.store(kInside | kWorked, std::memory_order_relaxed);
    else
      enter_quietly(self);
    light_fence();
    if (!shut()) [[likely]]
      return CUDA_SUCCESS;
    return wait(self, caller, work());
  }

  /// Or is what a program does before it gives some.
  static constexpr bool gives_work(Caller caller) {
    return caller == Caller::kWorks || caller == Caller::kCaptures;
  }

  static void enter_quietly(ThreadState& self) noexcept {
    const std::uint8_t mark = self.mark.load(std::memory_order_relaxed);
    self.mark.store(mark | kInside, std::memory_order_relaxed);
  }

  void leave(std::uint8_t mark) noexcept {
    ThreadState& self = this_thread();
    if (--self.depth > 0) return;
    self.mark.store(mark, std::memory_order_release);
    light_fence();
    if (shut()) [[unlikely]]
      changed();
  }

  static ThreadState& this_thread() noexcept {
    if (state_ == nullptr) [[unlikely]]
      state_ = register_thread();
    return *state_;
  }
  static ThreadState* register_thread() noexcept;

  void light_fence() noexcept {
    if (fence_needed_.load(std::memory_order_relaxed)) [[unlikely]]
      std::atomic_thread_fence(std::memory_order_seq_cst);
    else
      std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  using Lock = std::unique_lock<std::mutex>;  // of mutex_

  void fence() noexcept;
  CUresult wait(ThreadState& self, Caller caller, const Submission& submission) noexcept;
  Waiter waiter_of(Caller caller, const Submission& submission) const;
  void begin_wait(ThreadState& self, Waiter& waiter);
  CUresult await_answer(Waiter& waiter, Lock& lock);
  void end_wait(ThreadState& self, Waiter& waiter, CUresult result, Lock& lock);
  /// The end of its wait: CUDA_SUCCESS lets it pass. Nothing: it waits on.
  std::optional<CUresult> answer_to(const Waiter& waiter) const;
  void count_demand(bool begins, const char* call);
  bool ends(bool with_interpreter) const;
  bool ready(const Waiter& waiter) const;
  void look_at(Waiter& waiter, Lock& lock);
  void await_drains() noexcept;
  bool any_active() const;

  static thread_local ThreadState* state_ __attribute__((tls_model("initial-exec")));
  static std::atomic<ThreadState*>
      threads_;  // never shrinks; records of ended threads are used again

  std::atomic<Mode> mode_{Mode::kOpen};
  std::atomic<bool> opened_{true};
  std::atomic<bool> fence_needed_{false};
  Policy policy_;

  std::mutex
      mutex_;  // guards everything below, and every change of mode_; never held over the driver
  std::condition_variable waiters_;
  std::condition_variable watcher_;  // also: a look_at() has ended, or what it asked of a waiter
  std::condition_variable drained_;
  std::condition_variable demanded_;
  std::uint32_t drains_ = 0;         // and questions
  Clock::time_point captures_wait_;  // for drains and questions, at most until then
  std::uint32_t demanding_ = 0;      // callers that Demand counts
  Demand demand_;                    // the latest, without `waiting`
  std::uint64_t demand_version_ = 0;
  Waiter* first_waiter_ = nullptr;     // in the order in which they came
  const Waiter* looked_at_ = nullptr;  // the driver is asked about its stream: it must not leave
  std::uint64_t passes_ = 0;
  std::uint64_t version_ = 0;
  std::uint32_t permits_used_ = 0;
  std::uint32_t captures_ = 0;
  std::uint64_t shuts_ = 0;  // how often it was shut
  bool ending_ = false;
};

/// Passes the gate for the length of a scope, to ask something.
class PassToAsk {
 public:
  /// `entered`: what enter_to_ask() just returned.
  PassToAsk(Gate& gate, CUresult entered) noexcept : gate_(gate), result_(entered) {}
  ~PassToAsk() {
    if (result_ == CUDA_SUCCESS) gate_.leave_quietly();
  }
  PassToAsk(const PassToAsk&) = delete;
  PassToAsk& operator=(const PassToAsk&) = delete;
  CUresult result() const { return result_; }

 private:
  Gate& gate_;
  CUresult result_;
};

/// Passes the gate for the length of a scope.
class Pass {
 public:
  explicit Pass(Gate& gate) noexcept : Pass(gate, gate.enter()) {}
  /// For a call whose name must be known while it waits.
  Pass(Gate& gate, const char* call) noexcept
      : Pass(gate, gate.enter([call] {
          return Gate::Submission{false, nullptr, call};
        })) {}
  /// `entered`: what enter() or enter_capture() just returned.
  Pass(Gate& gate, CUresult entered) noexcept : gate_(gate), result_(entered) {}
  ~Pass() {
    if (result_ == CUDA_SUCCESS) gate_.leave();
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  CUresult result() const { return result_; }

 private:
  Gate& gate_;
  CUresult result_;
};

}  // namespace amem::shim
