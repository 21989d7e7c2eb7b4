// Starts a program of amemd's own, and waits for its end.
//
// Stateless; any thread. With `--with-parent PID` such a program ends with the thread that has
// started it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"

namespace amem {

inline constexpr std::size_t kMostOutput = 4096;  // bytes that are kept, the last ones
/// Whoever writes faster than amemd reads must not keep the loop.
inline constexpr int kReadsAtOnce = 16;
/// For the end of all programs together, where this process's own end waits for it.
inline constexpr Duration kLastEnd = std::chrono::milliseconds(500);

/// In a process group of its own. `input`: -1: /dev/null; `output`: standard output and error.
/// `environment`: "NAME=VALUE" each; nothing: this process's.
Result<pid_t> start_program(std::vector<std::string> words, int input, int output,
                            std::optional<std::vector<std::string>> environment = {});
/// For a child that has hardly begun, so it ends at once.
void end_now(pid_t child);
/// Returns whether it has ended, and then reaps it. `exit`: as from waitpid().
bool reap(pid_t child, int& exit);
/// The same, and waits for that until then. `process`: a pidfd of it.
bool reap_until(pid_t child, int process, int& exit, Time until);
/// "signal 9", "exit status 1".
std::string describe_exit(int exit);
std::string on_one_line(std::string text);

}  // namespace amem
