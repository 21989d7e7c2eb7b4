// How time passes where an event loop would sleep. Whoever uses it links with --wrap=epoll_wait.
#pragma once

#include <functional>

namespace amem::world {

/// So much time passes at once, after `before`. Empty: loops sleep, as they do until this is
/// called.
void sleep_passes_time(std::function<void()> before);

}  // namespace amem::world
