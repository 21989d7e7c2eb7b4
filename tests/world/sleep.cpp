#include "tests/world/sleep.h"

#include <sys/epoll.h>

#include <chrono>
#include <utility>

#include "tests/world/check.h"
#include "tests/world/outside.h"

namespace amem::world {
namespace {
std::function<void()> before_sleep;
}  // namespace

void sleep_passes_time(std::function<void()> before) { before_sleep = std::move(before); }

extern "C" {
int __real_epoll_wait(int epoll, epoll_event* events, int most, int timeout);

int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
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
