// Coroutine: what takes turns with an event loop in one thread, written as if it did not.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace amem::world {

class [[nodiscard]] Coroutine {
 public:
  struct promise_type {
    struct Last {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> it) noexcept {
        return it.promise().after;
      }
      void await_resume() noexcept {}
    };
    Coroutine get_return_object() {
      return Coroutine(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    Last final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }

    std::coroutine_handle<> after = std::noop_coroutine();
  };

  Coroutine(Coroutine&& other) noexcept : it_(std::exchange(other.it_, {})) {}
  Coroutine(const Coroutine&) = delete;
  ~Coroutine() {
    if (it_) it_.destroy();
  }
  /// Up to its first wait.
  void begin() { it_.resume(); }

  // Waiting for it runs it to its end.
  bool await_ready() const { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> who) {
    it_.promise().after = who;
    return it_;
  }
  void await_resume() const {}

 private:
  explicit Coroutine(std::coroutine_handle<promise_type> it) : it_(it) {}

  std::coroutine_handle<promise_type> it_;
};

/// Goes on when the loop has looked at its descriptors and timers. `Loop` has go_on_later(handle).
template <class Loop>
struct Turn {
  Loop& loop;
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> who) { loop.go_on_later(who); }
  void await_resume() const {}
};

}  // namespace amem::world
