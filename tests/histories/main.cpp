// histories: plays histories of whole nodes, each from a seed (README.md).
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>
#include <string>

#include "tests/fuzz/world.h"
#include "tests/histories/history.h"

namespace amem::histories {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Plays histories of a whole node, each from a seed.");
  std::uint64_t first = 1;
  std::uint64_t count = 1000;
  int events = 300;
  bool trace = false;
  bool lies = false;
  app.add_option("--seed", first, "the first one");
  app.add_option("--count", count, "of seeds, one after another");
  app.add_option("--events", events, "of each history, before its end");
  app.add_flag("--trace", trace, "says what happens");
  app.add_flag("--broken", lies,
               "ranks say that they have saved what they have not; succeeds when that is found");
  CLI11_PARSE(app, argc, argv);
  (void)fuzz::Ground::get();  // which switches the broker's log off
  if (trace) spdlog::set_level(spdlog::level::info);
  History::Orders orders;
  std::uint64_t deaths = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    History history(seed, trace, lies);
    std::string broken = history.play(events);
    if (broken.empty() && seed == first) {
      History again(seed, false, lies);
      broken = again.play(events);
      if (broken.empty() && again.hash() != history.hash()) broken = "the same seed does the same";
    }
    orders.all += history.orders().all;
    orders.succeeded += history.orders().succeeded;
    deaths += history.deaths();
    if (broken.empty()) continue;
    std::printf("seed %" PRIu64 ": broken: %s\n", seed, broken.c_str());
    if (!lies)
      std::printf("again: histories --trace --count 1 --seed %" PRIu64 " --events %d\n", seed,
                  events);
    return lies ? 0 : 1;
  }
  std::printf("%" PRIu64 " histories of %d events from seed %" PRIu64 " on; %" PRIu64
              " orders, of which %" PRIu64 " succeeded; %" PRIu64 " deaths of brokers\n",
              count, events, first, orders.all, orders.succeeded, deaths);
  return lies ? 1 : 0;
}

}  // namespace
}  // namespace amem::histories

int main(int argc, char** argv) { return amem::histories::run(argc, argv); }
