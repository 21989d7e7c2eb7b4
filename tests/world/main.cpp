// stage_traces: plays traces of stages with everything, each from a seed (README.md).
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>

#include "tests/fuzz/world.h"
#include "tests/histories/jobs.h"
#include "tests/world/stage_player.h"

namespace amem::world {
namespace {

struct Options {
  std::uint64_t first = 1;
  std::uint64_t count = 300;
  std::uint64_t jobs = 1;
  std::int64_t seconds = 0;
  bool go_on = false;
  std::vector<std::string> without;
  StagePlayer::Options player;
};

struct Counts {
  std::uint64_t played = 0;
  std::uint64_t broken = 0;
  std::uint64_t switches = 0;
  std::uint64_t failed = 0;
  std::uint64_t waits = 0;
  std::uint64_t deaths = 0;
  std::uint64_t missed = 0;
  void add(const Counts& other) {
    played += other.played;
    broken += other.broken;
    switches += other.switches;
    failed += other.failed;
    waits += other.waits;
    deaths += other.deaths;
    missed += other.missed;
  }
};

bool play_all(const Options& options, std::uint64_t job, Counts& counts) {
  (void)fuzz::Ground::get();  // which switches the broker's log off
  if (options.player.aloud) spdlog::set_level(spdlog::level::info);
  for (std::uint64_t at = job; at < options.count; at += options.jobs) {
    StageTrace trace = make_trace(options.first + at);
    if (options.seconds > 0) trace.length = std::chrono::seconds(options.seconds);
    for (const std::string& feature : options.without) leave_out(trace, feature);
    if (options.player.aloud) std::printf("%s\n", describe(trace).c_str());
    Played played = StagePlayer(trace, options.player).play();
    // While other processes of the machine end, the simulated driver may miss some of the memory in
    // use, once in some hundred traces of several jobs. What breaks without that breaks again.
    if (!played.broken.empty() && !options.player.aloud) {
      Played again = StagePlayer(trace, options.player).play();
      if (again.broken != played.broken) ++counts.missed;
      played = std::move(again);
    }
    ++counts.played;
    counts.switches += played.switches;
    counts.failed += played.failed;
    counts.waits += played.waits;
    counts.deaths += played.deaths;
    if (played.broken.empty()) continue;
    ++counts.broken;
    std::printf("%s\n  broken: %s\n  again: stage_traces --aloud --count 1 --seed %" PRIu64 "\n",
                describe(trace).c_str(), played.broken.c_str(), trace.seed);
    std::fflush(stdout);
    if (!options.go_on) return false;
  }
  return counts.broken == 0;
}

int run(int argc, char** argv) {
  CLI::App app("Plays traces of stages, each from a seed.");
  Options options;
  app.add_option("--seed", options.first, "the first one");
  app.add_option("--count", options.count, "of seeds, one after another");
  app.add_option("--jobs", options.jobs, "so many at a time")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", options.seconds, "of each trace, before its end; 0: by its seed");
  app.add_flag("--aloud", options.player.aloud, "says what happens");
  app.add_option("--without", options.without, "what traces leave out")
      ->delimiter(',')
      ->check(CLI::IsMember(features()));
  app.add_flag("--all", options.go_on, "goes on after a trace that breaks");
  CLI11_PARSE(app, argc, argv);
  fuzz::Ground::shape({kDevices, kDevicePages * kPage});
  Counts sum;
  const bool all_well = histories::play_in_jobs(
      options.jobs, options.first, sum,
      [&](std::uint64_t job, Counts& counts) { return play_all(options, job, counts); });
  std::printf(
      "%" PRIu64 " traces from seed %" PRIu64 " on, %" PRIu64 " broken; %" PRIu64
      " switches, of which %" PRIu64 " failed; %" PRIu64 " waits; %" PRIu64 " deaths of amemd\n",
      sum.played, options.first, sum.broken, sum.switches, sum.failed, sum.waits, sum.deaths);
  return all_well ? 0 : 1;
}

}  // namespace
}  // namespace amem::world

int main(int argc, char** argv) { return amem::world::run(argc, argv); }
