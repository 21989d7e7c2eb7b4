// How time passes where an event loop would sleep. Whoever uses it links with --wrap=epoll_wait.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

namespace amem::world {

/// So much time passes at once, after `before`. Empty: loops sleep, as they do until this is
/// called.
void sleep_passes_time(std::function<void()> before);

/// Where a loop would sleep this is called instead, which lets time pass or makes something happen.
/// Empty: as before.
void instead_of_sleep(
    std::function<void(std::optional<std::chrono::milliseconds> until_a_timer)> goes_on);

}  // namespace amem::world
