#include "tests/world/sleep.h"

#include <sys/epoll.h>

#include <chrono>
#include <utility>

#include "tests/world/check.h"
#include "tests/world/outside.h"

namespace amem::world {
namespace {
std::function<void()> before_sleep;
std::function<void(std::optional<std::chrono::milliseconds>)> goes_on;
}  // namespace

void sleep_passes_time(std::function<void()> before) { before_sleep = std::move(before); }

void instead_of_sleep(std::function<void(std::optional<std::chrono::milliseconds>)> what) {
  goes_on = std::move(what);
}

extern "C" {
int __real_epoll_wait(int epoll, epoll_event* events, int most, int timeout);

int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  if (goes_on) {
    const int ready = __real_epoll_wait(epoll, events, most, 0);
    // A loop that has had nothing to do for so long looks at its timers.
    if (ready != 0) outside::pass(std::chrono::microseconds(100));
    if (ready == 0 && timeout != 0)
      goes_on(timeout < 0 ? std::nullopt : std::optional(std::chrono::milliseconds(timeout)));
    return ready;
  }
  if (!before_sleep) return __real_epoll_wait(epoll, events, most, timeout);
  const int count = __real_epoll_wait(epoll, events, most, 0);
  if (count != 0) return count;
  require(timeout >= 0, "something is due");
  before_sleep();
  // A loop that does not sleep looks how late it is.
  outside::pass(timeout > 0 ? std::chrono::nanoseconds(std::chrono::milliseconds(timeout))
                            : std::chrono::microseconds(50));
  return 0;
}
}

}  // namespace amem::world
