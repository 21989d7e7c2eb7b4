// parent: `amemctl run --job-control`. The process that stays above a command, so that job control
// frees the GPU: Ctrl-Z, `kill -TSTP` and Slurm's suspend pause the memory of the command and then
// stop it; `fg`, `bg` and SIGCONT continue it and resume its memory.
//
// The command and what it starts ignore SIGTSTP, as they inherit it through exec. This process gets
// it, pauses, and stops first them and then itself by SIGSTOP. It stays in the process group of the
// command, so a shell sees one job. It is the subreaper of its descendants, so each of them is
// below it, whatever sessions launchers such as torchrun make.
//
// For a process with one thread.
#pragma once

#include <csignal>
#include <string>
#include <vector>

namespace amem::ctl {

struct Job {
  std::vector<std::string> program;
  std::string socket;  // amemd's, for control; empty: none is known, so nothing is paused
  std::string group;   // its whole name
};

/// The signals of the job come to this process's run_as_parent() from now on, and wait until then.
/// Made before any other thread begins, which would get them.
class JobSignals {
 public:
  JobSignals();
  /// What was blocked before.
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
};

/// Runs the command to its end, and ends as it has ended: by the same signal, or returns its exit
/// status. Where it does not start, writes an error and returns an exit code.
int run_as_parent(const Job& job, const JobSignals& signals, bool json);

}  // namespace amem::ctl
