// Threads of the driver's own.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace sim {

/// Starts a thread that runs for as long as it likes. Signals are the program's business and its
/// threads', so this one gets none.
template <typename... Arguments>
void StartThread(Arguments&&... arguments) {
  sigset_t all;
  sigset_t saved;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &saved);
  try {
    std::thread(std::forward<Arguments>(arguments)...).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &saved, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
}

}  // namespace sim
