// histories: plays histories of whole nodes, each from a seed (README.md).
#include <spdlog/spdlog.h>

#include <string>

#include "tests/fuzz/ground.h"
#include "tests/histories/history.h"
#include "tests/histories/jobs.h"

namespace amem::histories {
namespace {

struct Options {
  Seeds seeds{.count = 1000};
  int events = 300;
  bool trace = false;
  bool lies = false;
};

enum : std::size_t { kPlayed, kTransactions, kSucceeded, kDeaths, kCheckpoints, kLost, kCounts };

/// False: something broke.
bool play(const Options& options, std::uint64_t seed, Counts<kCounts>& counts) {
  (void)fuzz::Ground::get();  // which switches the broker's log off
  if (options.trace) spdlog::set_level(spdlog::level::info);
  History history(seed, options.trace, options.lies);
  std::string broken = history.play(options.events);
  if (broken.empty() && counts[kPlayed] == 0) {
    History again(seed, false, options.lies);
    broken = again.play(options.events);
    if (broken.empty() && again.hash() != history.hash()) broken = "the same seed does the same";
  }
  counts[kTransactions] += history.transactions().all;
  counts[kSucceeded] += history.transactions().succeeded;
  counts[kDeaths] += history.deaths();
  counts[kCheckpoints] += history.checkpoints().taken();
  counts[kLost] += history.checkpoints().lost();
  if (broken.empty()) return true;
  std::printf("seed %" PRIu64 ": broken: %s\n", seed, broken.c_str());
  if (!options.lies)
    std::printf("again: histories --trace --count 1 --seed %" PRIu64 " --events %d\n", seed,
                options.events);
  return false;
}

int run(int argc, char** argv) {
  CLI::App app("Plays histories of a whole node, each from a seed.");
  Options options;
  options.seeds.add_to(app);
  app.add_option("--events", options.events, "of each history, before its end");
  app.add_flag("--trace", options.trace, "says what happens");
  app.add_flag("--broken", options.lies,
               "ranks say that they have saved what they have not; succeeds when that is found");
  CLI11_PARSE(app, argc, argv);
  Counts<kCounts> sum{};
  const bool all_well = play_in_jobs(
      options.seeds, sum,
      [&](std::uint64_t seed, Counts<kCounts>& counts) { return play(options, seed, counts); });
  std::printf("%" PRIu64 " histories of %d events from seed %" PRIu64 " on; %" PRIu64
              " transactions, of which %" PRIu64 " succeeded; %" PRIu64
              " deaths of brokers; %" PRIu64
              " checkpoints of processes, of which the driver lost %" PRIu64 "\n",
              sum[kPlayed], options.events, options.seeds.first, sum[kTransactions],
              sum[kSucceeded], sum[kDeaths], sum[kCheckpoints], sum[kLost]);
  return all_well != options.lies ? 0 : 1;
}

}  // namespace
}  // namespace amem::histories

int main(int argc, char** argv) { return amem::histories::run(argc, argv); }
