// process_stat: what /proc says of a process. Plain functions; any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace amem {

struct ProcessStat {
  char state = 0;  // 'R', 'S', 'T' (stopped), ...
  pid_t parent = 0;
};

/// Nothing: there is no such process, or `proc`, where /proc is, does not show it.
std::optional<ProcessStat> process_stat(pid_t pid, const std::string& proc = "/proc");

}  // namespace amem
