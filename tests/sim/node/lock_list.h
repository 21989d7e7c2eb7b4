// The kernel's list of all file locks of this machine.
//
// To read it stops all locking, for a time that grows with the list's length squared. So where it
// is long, as with many simulated nodes on one machine, processes of one user share a reading:
// whoever waits for another's takes that, if it began after his own call did. A file in /dev/shm
// has it.
//
// Any thread, any process; also in a forked child.
#pragma once

#include <string>

namespace sim {

/// /proc/locks, as the kernel gave it after this call began.
std::string LockList();

}  // namespace sim
