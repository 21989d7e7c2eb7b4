// ExitHandler: runs a function as early in exit() as a library can.
//
// Handlers run in the reverse order of their registration, those of std::atexit and the destructors
// of static objects alike. So whoever wants to be first registers last: arm() again moves this one
// in front of all that have been registered since. Before it come only the destructors of the
// exiting thread's thread_local objects, and what is registered later.
#pragma once

#include <atomic>

namespace amem::shim {

class ExitHandler {
 public:
  /// `run`: once, on the thread that calls exit().
  explicit ExitHandler(void (*run)()) : run_(run) {}
  ExitHandler(const ExitHandler&) = delete;
  ExitHandler& operator=(const ExitHandler&) = delete;

  /// One thread at a time. Does not block on the loader, nor on handlers that run.
  void arm();

 private:
  static void exiting(void* self);

  void (*const run_)();
  std::atomic<bool> begun_{false};
};

}  // namespace amem::shim
