// turn_traces: plays traces of stages, each from a seed (README.md).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <string>

#include "daemon/base/units.h"
#include "tests/turns/player.h"
#include "tests/turns/rivals.h"
#include "tests/turns/trace.h"

namespace amem::turn_traces {
namespace {

/// On bursts, this many times the resumes of farthest next use are allowed, over all traces.
constexpr double kAllowed = 1.5;

struct Compared {
  std::uint64_t traces = 0;
  std::uint64_t turns = 0;
  std::uint64_t farthest = 0;
  std::uint64_t optimum = 0;
  std::uint64_t over = 0;  // traces with more than is allowed over all
  double worst = 0;        // of one trace, against farthest next use
  std::uint64_t worst_seed = 0;
};

double ratio(std::uint64_t a, std::uint64_t b) {
  return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
}

struct Totals {
  std::uint64_t traces = 0;
  std::uint64_t storms = 0;
  std::uint64_t resumes = 0;
  std::uint64_t waits = 0;
  std::uint64_t promised = 0;
  double nearest = 0;
  double off_weight = 0;
  std::uint64_t rotations = 0;
  std::map<Kind, Compared> few;   // up to six groups: also with the optimum
  std::map<Kind, Compared> many;  // more
};

void compare(const Trace& trace, const Played& played, Totals& totals) {
  FarthestNextUse rival(trace);
  const Played other = play(trace, &rival);
  if (!other.broken.empty()) {
    std::printf("%s\n  farthest next use: %s\n", describe(trace).c_str(), other.broken.c_str());
    return;
  }
  const auto fewest = fewest_resumes(trace, played.order);
  Compared& sum = (fewest ? totals.few : totals.many)[trace.kind];
  ++sum.traces;
  sum.turns += played.resumes;
  sum.farthest += other.resumes;
  sum.optimum += fewest.value_or(0);
  const double here = ratio(played.resumes, other.resumes);
  if (here > kAllowed) ++sum.over;
  if (here <= sum.worst) return;
  sum.worst = here;
  sum.worst_seed = trace.seed;
}

/// False: something does not hold.
bool play_one(std::uint64_t seed, bool aloud, Totals& totals) {
  const Trace trace = make_trace(seed);
  if (aloud) std::printf("%s\n", describe(trace).c_str());
  const Played played = play(trace, nullptr, aloud);
  ++totals.traces;
  if (trace.storms) ++totals.storms;
  totals.resumes += played.resumes;
  totals.waits += played.waits;
  totals.promised += played.promised;
  totals.nearest = std::max(totals.nearest, played.nearest);
  totals.off_weight = std::max(totals.off_weight, played.off_weight);
  if (played.off_weight > 0) ++totals.rotations;
  if (played.broken.empty()) {
    if (trace.comparable) compare(trace, played, totals);
    return true;
  }
  std::printf("%s\n  broken: %s\n  again: turn_traces --aloud --count 1 --seed %" PRIu64 "\n",
              describe(trace).c_str(), played.broken.c_str(), seed);
  return false;
}

void print(const char* groups, const std::map<Kind, Compared>& table) {
  for (const auto& [kind, sum] : table)
    std::printf("%-8s %-12s %8" PRIu64 " %10" PRIu64 " %10" PRIu64 " %10" PRIu64
                " %8.3f %8.3f %8" PRIu64 " %8.2f (seed %" PRIu64 ")\n",
                to_string(kind), groups, sum.traces, sum.turns, sum.farthest, sum.optimum,
                ratio(sum.turns, sum.farthest), ratio(sum.turns, sum.optimum), sum.over, sum.worst,
                sum.worst_seed);
}

bool few_enough(const std::map<Kind, Compared>& table) {
  const auto bursts = table.find(Kind::kBursts);
  if (bursts == table.end()) return true;
  const double is = ratio(bursts->second.turns, bursts->second.farthest);
  if (is <= kAllowed) return true;
  std::printf("broken: on bursts %.3f times the resumes of farthest next use\n", is);
  return false;
}

int run(std::uint64_t first, std::uint64_t count, bool aloud) {
  std::printf("seeds %" PRIu64 " to %" PRIu64 "\n", first, first + count - 1);
  const auto begin = std::chrono::steady_clock::now();
  Totals totals;
  bool good = true;
  for (std::uint64_t seed = first; seed < first + count; ++seed)
    good = play_one(seed, aloud, totals) && good;
  std::printf("%" PRIu64 " traces (%" PRIu64 " with storms), %" PRIu64 " resumes, %" PRIu64
              " waits; %" PRIu64 " with a longest wait, the longest %.1f %% of it\n",
              totals.traces, totals.storms, totals.resumes, totals.waits, totals.promised,
              100 * totals.nearest);
  std::printf("%" PRIu64 " rotations of 100 rounds: at most %.3f %% off their weights\n",
              totals.rotations, 100 * totals.off_weight);
  std::printf("%-8s %-12s %8s %10s %10s %10s %8s %8s %8s %s\n", "kind", "groups", "traces",
              "resumes", "farthest", "optimum", "/farth.", "/opt.", "> 1.5",
              "worst trace / farthest");
  print("2 to 6", totals.few);
  print("7 to 32", totals.many);
  good = few_enough(totals.few) && few_enough(totals.many) && good;
  std::printf("%s after %.1f s\n", good ? "all holds" : "broken",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return good ? 0 : 1;
}

}  // namespace
}  // namespace amem::turn_traces

int main(int argc, char** argv) {
  CLI::App app("Plays traces of groups that take turns, each from a seed.");
  std::uint64_t first = 1;
  std::uint64_t count = 1000;
  bool aloud = false;
  app.add_option("--seed", first, "of the first trace");
  app.add_option("--count", count, "of traces");
  app.add_flag("--aloud", aloud, "say what happens");
  CLI11_PARSE(app, argc, argv);
  return amem::turn_traces::run(first, count, aloud);
}
