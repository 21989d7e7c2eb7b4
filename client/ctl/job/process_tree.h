// process_tree: the processes below this one, as /proc shows them.
//
// Plain functions; any thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <set>
#include <string>

namespace amem::ctl {

/// Each process and its parent.
using Parents = std::map<pid_t, pid_t>;

/// As they are now. `proc`: where /proc is. A process that ends meanwhile may be left out.
Parents read_parents(const std::string& proc = "/proc");

/// Returns those that descend from `top`, without it.
std::set<pid_t> below(pid_t top, const Parents& parents);

/// Sends `signal` to each process below this one, again and again until no new one appears: what a
/// process starts before the signal reaches it gets it, too. Ends after `limit` at the latest.
/// Returns those that the kernel let it not signal, such as another user's.
std::set<pid_t> signal_all_below(int signal, std::chrono::milliseconds limit);

}  // namespace amem::ctl
