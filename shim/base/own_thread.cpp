#include "shim/base/own_thread.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "shim/base/log.h"

namespace amem::shim {
namespace {

/// Before a thread that has failed begins again.
constexpr std::chrono::milliseconds kRunAgain{500};

}  // namespace

bool start_own_thread(const char* name, const char* task, std::function<void()> run) {
  try {
    std::thread([name, task, run = std::move(run)] {
      pthread_setname_np(pthread_self(), name);
      for (;;) {
        try {
          run();
        } catch (const std::exception& error) {  // as bad_alloc
          log_error(std::string("a thread that is to ") + task + " fails: " + error.what());
          std::this_thread::sleep_for(kRunAgain);
        }
      }
    }).detach();
    return true;
  } catch (const std::system_error& error) {
    log_error(std::string("cannot start a thread to ") + task + ": " + error.what());
    return false;
  }
}

}  // namespace amem::shim
