// Plays seeds in processes of their own, since a node is one's whole process.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace amem::world {

struct Seeds {
  std::uint64_t first = 1;
  std::uint64_t count = 1;
  std::uint64_t jobs = 1;
  void add_to(CLI::App& app) {
    app.add_option("--seed", first, "the first one");
    app.add_option("--count", count, "of seeds, one after another");
    app.add_option("--jobs", jobs, "so many at a time")->check(CLI::Range(1, 1024));
  }
};

/// Of what all have done; the first: how many seeds were played.
template <std::size_t size>
using Counts = std::array<std::uint64_t, size>;

/// `play(seed, counts)`; false: it has failed, and its job ends. Returns whether all went well.
template <std::size_t size, class Play>
bool play_in_jobs(const Seeds& seeds, Counts<size>& sum, Play play) {
  const auto play_job = [&](std::uint64_t job, Counts<size>& counts) {
    for (std::uint64_t at = job; at < seeds.count; at += seeds.jobs, ++counts[0])
      if (!play(seeds.first + at, counts)) return false;
    return true;
  };
  if (seeds.jobs == 1) return play_job(0, sum);
  const std::size_t bytes = seeds.jobs * sizeof sum;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    return false;
  }
  const std::span<Counts<size>> counts(static_cast<Counts<size>*>(memory), seeds.jobs);
  std::vector<pid_t> children;
  while (children.size() < seeds.jobs) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const std::uint64_t job = children.size();
      std::exit(play_job(job, counts[job]) ? 0 : 1);
    }
    if (child < 0) {
      std::perror("fork");
      break;
    }
    children.push_back(child);
  }
  bool all_well = children.size() == seeds.jobs;
  for (std::size_t job = 0; job < children.size(); ++job) {
    int status = 0;
    if (::waitpid(children[job], &status, 0) < 0 || status != 0) all_well = false;
    if (WIFSIGNALED(status))
      std::printf("seed %" PRIu64 ": ended by signal %d\n",
                  seeds.first + job + counts[job][0] * seeds.jobs, WTERMSIG(status));
    for (std::size_t i = 0; i < size; ++i) sum[i] += counts[job][i];
  }
  ::munmap(memory, bytes);
  return all_well;
}

}  // namespace amem::world
