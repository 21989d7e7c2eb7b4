// What a broker asks the system for, as an input wants it: the time, who connects, random numbers.
// The same input so does the same each time. The linker puts these functions in the place of the
// C library's (CMakeLists.txt).
#pragma once

#include <sys/types.h>

#include <chrono>

namespace amem::world::outside {

/// From the same time and the same random numbers again; nobody connects.
void begin();
void pass(std::chrono::nanoseconds time);

/// Who the next ones are that connect, in their order. `process`: readable once it has ended; the
/// caller's.
void connects(pid_t pid, uid_t uid, int process);
/// A process that has connected has ended.
void ends(pid_t pid);
/// Those whom nobody has asked about yet will not be: who they connected to has ended.
void nobody_connects();

}  // namespace amem::world::outside
