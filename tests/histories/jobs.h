// Plays seeds in processes of their own, since a node is one's whole process.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace amem::histories {

/// `play(job, counts)`: every jobs-th seed from `first` + job on; false: one has failed. `Counts`:
/// plain, with `played` seeds and `add(other)`. Returns whether all went well.
template <class Counts, class Play>
bool play_in_jobs(std::uint64_t jobs, std::uint64_t first, Counts& sum, Play play) {
  if (jobs == 1) return play(std::uint64_t{0}, sum);
  const std::size_t bytes = jobs * sizeof(Counts);
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    return false;
  }
  const std::span<Counts> counts(static_cast<Counts*>(memory), jobs);
  std::vector<pid_t> children;
  while (children.size() < jobs) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const std::uint64_t job = children.size();
      std::exit(play(job, counts[job]) ? 0 : 1);
    }
    if (child < 0) {
      std::perror("fork");
      break;
    }
    children.push_back(child);
  }
  bool all_well = children.size() == jobs;
  for (std::size_t job = 0; job < children.size(); ++job) {
    int status = 0;
    if (::waitpid(children[job], &status, 0) < 0 || status != 0) all_well = false;
    if (WIFSIGNALED(status))
      std::printf("seed %" PRIu64 ": ended by signal %d\n", first + job + counts[job].played * jobs,
                  WTERMSIG(status));
    sum.add(counts[job]);
  }
  ::munmap(memory, bytes);
  return all_well;
}

}  // namespace amem::histories
