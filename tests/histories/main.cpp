// histories: plays histories of whole nodes, each from a seed (README.md).
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>
#include <string>

#include "tests/fuzz/world.h"
#include "tests/histories/history.h"
#include "tests/histories/jobs.h"

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
  std::uint64_t played = 0;
  std::uint64_t transactions = 0;
  std::uint64_t succeeded = 0;
  std::uint64_t deaths = 0;
  std::uint64_t checkpoints = 0;
  std::uint64_t lost = 0;
  void add(const Played& other) {
    played += other.played;
    transactions += other.transactions;
    succeeded += other.succeeded;
    deaths += other.deaths;
    checkpoints += other.checkpoints;
    lost += other.lost;
  }
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
  ++played.played;
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
  const bool all_well = play_in_jobs(
      options.jobs, options.first, played,
      [&](std::uint64_t job, Played& counts) { return play_all(options, job, counts); });
  std::printf("%" PRIu64 " histories of %d events from seed %" PRIu64 " on; %" PRIu64
              " transactions, of which %" PRIu64 " succeeded; %" PRIu64
              " deaths of brokers; %" PRIu64
              " checkpoints of processes, of which the driver lost %" PRIu64 "\n",
              played.played, options.events, options.first, played.transactions, played.succeeded,
              played.deaths, played.checkpoints, played.lost);
  return all_well != options.lies ? 0 : 1;
}

}  // namespace
}  // namespace amem::histories

int main(int argc, char** argv) { return amem::histories::run(argc, argv); }
