// Sleep: where the broker's loop would wait, the time of tests/fuzz/outside passes instead. The
// linker puts this in the place of the C library's epoll_wait (CMakeLists.txt).
#pragma once

#include <functional>

namespace amem::world {

/// `before`: is called each time before time passes. Null: the loop waits as usual, for what other
/// threads do.
void sleep_passes_time(std::function<void()> before);

}  // namespace amem::world
