// histories: plays histories of whole nodes, each from a seed (README.md).
#include <spdlog/spdlog.h>

#include <string>

#include "tests/histories/history.h"
#include "tests/world/check.h"
#include "tests/world/ground.h"
#include "tests/world/jobs.h"

namespace amem::histories {
namespace {

using world::Counts;

struct Options {
  world::Seeds seeds{.count = 1000};
  int events = 300;
  bool trace = false;
  bool lies = false;
  bool table = false;
  std::vector<std::string> without;
};

constexpr std::size_t kMet = 90;  // habits and doings
enum : std::size_t {
  kPlayed,
  kTransactions,
  kSucceeded,
  kDeaths,
  kCheckpoints,
  kLost,
  kFirstMet,
  kCounts = kFirstMet + kMet
};

/// False: something broke.
bool play(const Options& options, std::uint64_t seed, Counts<kCounts>& counts) {
  (void)world::Ground::get();  // which switches the broker's log off
  if (options.trace) spdlog::set_level(spdlog::level::info);
  History history(seed, options.trace, options.lies, options.without);
  std::string broken = history.play(options.events);
  // Where two owners share the pool, it matters how fast its thread is.
  if (broken.empty() && counts[kPlayed] == 0 && !history.has("owners")) {
    History again(seed, false, options.lies, options.without);
    broken = again.play(options.events);
    if (broken.empty() && again.hash() != history.hash()) broken = "the same seed does the same";
  }
  counts[kTransactions] += history.transactions().all;
  counts[kSucceeded] += history.transactions().succeeded;
  counts[kDeaths] += history.deaths();
  counts[kCheckpoints] += history.checkpoints().taken();
  counts[kLost] += history.checkpoints().lost();
  world::require(history.met().size() == kMet, "the table has a place for all of them");
  for (std::size_t i = 0; i < kMet; ++i) counts[kFirstMet + i] += history.met()[i];
  if (broken.empty()) return true;
  std::printf("seed %" PRIu64 ": broken: %s\n", seed, broken.c_str());
  if (!options.lies)
    std::printf("again: histories --trace --count 1 --seed %" PRIu64 " --events %d\n", seed,
                options.events);
  return false;
}

/// Whether each doing has met each habit.
bool print_table(const Counts<kCounts>& sum) {
  const auto& doings = History::doings();
  std::printf("%-10s", "");
  for (const std::string& doing : doings) std::printf("%9s", doing.c_str());
  std::size_t at = kFirstMet;
  bool all = true;
  for (const History::Habit& habit : History::habits()) {
    std::printf("\n%-10s", habit.name.c_str());
    for (std::size_t i = 0; i < doings.size(); ++i, ++at) {
      std::printf("%9" PRIu64, sum[at]);
      all = all && sum[at] > 0;
    }
  }
  std::printf("\n%s", all ? "" : "broken: not every habit has met everything that is done\n");
  return all;
}

int run(int argc, char** argv) {
  CLI::App app("Plays histories of a whole node, each from a seed.");
  Options options;
  options.seeds.add_to(app);
  app.add_option("--events", options.events, "of each history, before its end");
  app.add_flag("--trace", options.trace, "says what happens");
  app.add_flag("--broken", options.lies,
               "ranks say that they have saved what they have not; succeeds when that is found");
  app.add_option("--without", options.without, "habits that histories do not have")->delimiter(',');
  app.add_flag("--table", options.table,
               "how often each habit has met each operation; fails where one never has");
  CLI11_PARSE(app, argc, argv);
  Counts<kCounts> sum{};
  bool all_well = play_in_jobs(
      options.seeds, sum,
      [&](std::uint64_t seed, Counts<kCounts>& counts) { return play(options, seed, counts); });
  std::printf("%" PRIu64 " histories of %d events from seed %" PRIu64 " on; %" PRIu64
              " transactions, of which %" PRIu64 " succeeded; %" PRIu64
              " deaths of brokers; %" PRIu64
              " checkpoints of processes, of which the driver lost %" PRIu64 "\n",
              sum[kPlayed], options.events, options.seeds.first, sum[kTransactions],
              sum[kSucceeded], sum[kDeaths], sum[kCheckpoints], sum[kLost]);
  if (options.table) all_well = print_table(sum) && all_well;
  return all_well != options.lies ? 0 : 1;
}

}  // namespace
}  // namespace amem::histories

int main(int argc, char** argv) { return amem::histories::run(argc, argv); }
