// A thread of the shim's own, which lives until the process ends.
#pragma once

#include <functional>

namespace amem::shim {

/// Runs `run` on a thread, again and again where it throws, and `name`s the thread. `task`: what it
/// does, for the log: "watch the devices". False: there is no thread, and the log says why. It
/// inherits the caller's signal mask.
bool start_own_thread(const char* name, const char* task, std::function<void()> run);

}  // namespace amem::shim
