// histories: plays histories of whole nodes, each from a seed (README.md).
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "tests/fuzz/world.h"
#include "tests/histories/history.h"

namespace amem::histories {
namespace {

struct Options {
  std::uint64_t first = 1;
  std::uint64_t count = 1000;
  std::uint64_t jobs = 1;
  int events = 300;
  bool trace = false;
  bool lies = false;
};

struct Played {
  std::uint64_t histories = 0;
  std::uint64_t transactions = 0;
  std::uint64_t succeeded = 0;
  std::uint64_t deaths = 0;
  std::uint64_t checkpoints = 0;
  std::uint64_t lost = 0;
};

/// What broke, or nothing.
std::string play(const Options& options, std::uint64_t seed, bool twice, Played& played) {
  History history(seed, options.trace, options.lies);
  std::string broken = history.play(options.events);
  if (broken.empty() && twice) {
    History again(seed, false, options.lies);
    broken = again.play(options.events);
    if (broken.empty() && again.hash() != history.hash()) broken = "the same seed does the same";
  }
  ++played.histories;
  played.transactions += history.transactions().all;
  played.succeeded += history.transactions().succeeded;
  played.deaths += history.deaths();
  played.checkpoints += history.checkpoints().taken();
  played.lost += history.checkpoints().lost();
  return broken;
}

/// Every jobs-th seed from first + job on, to the first that breaks. False: one did.
bool play_all(const Options& options, std::uint64_t job, Played& played) {
  (void)fuzz::Ground::get();  // which switches the broker's log off
  if (options.trace) spdlog::set_level(spdlog::level::info);
  for (std::uint64_t at = job; at < options.count; at += options.jobs) {
    const std::uint64_t seed = options.first + at;
    const std::string broken = play(options, seed, at == job, played);
    if (broken.empty()) continue;
    std::printf("seed %" PRIu64 ": broken: %s\n", seed, broken.c_str());
    if (!options.lies)
      std::printf("again: histories --trace --count 1 --seed %" PRIu64 " --events %d\n", seed,
                  options.events);
    return false;
  }
  return true;
}

/// In processes of their own, since a node is one's whole process. A job ends at its first that
/// breaks, the others go on.
bool play_in_jobs(const Options& options, Played& played) {
  const std::size_t bytes = options.jobs * sizeof(Played);
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("histories: mmap");
    return false;
  }
  const std::span<Played> counts(static_cast<Played*>(memory), options.jobs);
  std::vector<pid_t> children;
  while (children.size() < options.jobs) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const std::size_t job = children.size();
      std::exit(play_all(options, job, counts[job]) ? 0 : 1);
    }
    if (child < 0) {
      std::perror("histories: fork");
      break;
    }
    children.push_back(child);
  }
  bool all_well = children.size() == options.jobs;
  for (std::size_t job = 0; job < children.size(); ++job) {
    int status = 0;
    if (::waitpid(children[job], &status, 0) < 0 || status != 0) all_well = false;
    const Played& each = counts[job];
    if (WIFSIGNALED(status))
      std::printf("seed %" PRIu64 ": ended by signal %d\n",
                  options.first + job + each.histories * options.jobs, WTERMSIG(status));
    played.histories += each.histories;
    played.transactions += each.transactions;
    played.succeeded += each.succeeded;
    played.deaths += each.deaths;
    played.checkpoints += each.checkpoints;
    played.lost += each.lost;
  }
  ::munmap(memory, bytes);
  return all_well;
}

int run(int argc, char** argv) {
  CLI::App app("Plays histories of a whole node, each from a seed.");
  Options options;
  app.add_option("--seed", options.first, "the first one");
  app.add_option("--count", options.count, "of seeds, one after another");
  app.add_option("--jobs", options.jobs, "so many at a time")->check(CLI::Range(1, 1024));
  app.add_option("--events", options.events, "of each history, before its end");
  app.add_flag("--trace", options.trace, "says what happens");
  app.add_flag("--broken", options.lies,
               "ranks say that they have saved what they have not; succeeds when that is found");
  CLI11_PARSE(app, argc, argv);
  Played played;
  const bool all_well =
      options.jobs > 1 ? play_in_jobs(options, played) : play_all(options, 0, played);
  std::printf("%" PRIu64 " histories of %d events from seed %" PRIu64 " on; %" PRIu64
              " transactions, of which %" PRIu64 " succeeded; %" PRIu64
              " deaths of brokers; %" PRIu64
              " checkpoints of processes, of which the driver lost %" PRIu64 "\n",
              played.histories, options.events, options.first, played.transactions,
              played.succeeded, played.deaths, played.checkpoints, played.lost);
  return all_well != options.lies ? 0 : 1;
}

}  // namespace
}  // namespace amem::histories

int main(int argc, char** argv) { return amem::histories::run(argc, argv); }
