#include "tests/world/sleep.h"

#include <sys/epoll.h>

#include <chrono>
#include <utility>

#include "tests/fuzz/check.h"
#include "tests/fuzz/outside.h"

namespace amem::world {
namespace {
std::function<void()> before_it;  // null: the real time passes
}  // namespace

void sleep_passes_time(std::function<void()> before) { before_it = std::move(before); }

extern "C" {
int __real_epoll_wait(int epoll, epoll_event* events, int most, int timeout);

int __wrap_epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  if (!before_it) return __real_epoll_wait(epoll, events, most, timeout);
  const int count = __real_epoll_wait(epoll, events, most, 0);
  if (count != 0) return count;
  fuzz::require(timeout >= 0, "something is due");
  before_it();
  // A loop that does not sleep looks how late it is.
  if (timeout > 0)
    fuzz::outside::pass(std::chrono::milliseconds(timeout));
  else
    fuzz::outside::pass(std::chrono::microseconds(50));
  return 0;
}
}

}  // namespace amem::world
