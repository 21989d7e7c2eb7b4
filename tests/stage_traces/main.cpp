// stage_traces: plays traces of stages with everything, each from a seed (README.md).
#include <spdlog/spdlog.h>

#include "tests/stage_traces/stage_player.h"
#include "tests/world/ground.h"
#include "tests/world/jobs.h"

namespace amem::stage_traces {
namespace {

using world::Counts;

struct Options {
  world::Seeds seeds{.count = 300};
  std::int64_t seconds = 0;
  bool go_on = false;
  std::vector<std::string> without;
  StagePlayer::Options player;
};

enum : std::size_t { kPlayed, kBroken, kSwitches, kFailed, kWaits, kDeaths, kCounts };

/// False: something broke, and nothing more is to be played.
bool play(const Options& options, std::uint64_t seed, Counts<kCounts>& counts) {
  (void)world::Ground::get();  // which switches the broker's log off
  if (options.player.aloud) spdlog::set_level(spdlog::level::info);
  StageTrace trace = make_trace(seed);
  if (options.seconds > 0) trace.length = std::chrono::seconds(options.seconds);
  for (const std::string& feature : options.without) leave_out(trace, feature);
  if (options.player.aloud) std::printf("%s\n", describe(trace).c_str());
  Played played = StagePlayer(trace, options.player).play();
  // While other processes of the machine end, the simulated driver may miss some of the memory in
  // use, once in some hundred traces of several jobs. What breaks without that breaks again.
  if (!played.broken.empty() && !options.player.aloud)
    played = StagePlayer(trace, options.player).play();
  counts[kSwitches] += played.switches;
  counts[kFailed] += played.failed;
  counts[kWaits] += played.waits;
  counts[kDeaths] += played.deaths;
  if (played.broken.empty()) return true;
  ++counts[kBroken];
  std::printf("%s\n  broken: %s\n  again: stage_traces --aloud --count 1 --seed %" PRIu64 "\n",
              describe(trace).c_str(), played.broken.c_str(), trace.seed);
  std::fflush(stdout);
  return options.go_on;
}

int run(int argc, char** argv) {
  CLI::App app("Plays traces of stages, each from a seed.");
  Options options;
  options.seeds.add_to(app);
  app.add_option("--seconds", options.seconds, "of each trace, before its end; 0: by its seed");
  app.add_flag("--aloud", options.player.aloud, "says what happens");
  app.add_option("--without", options.without, "what traces leave out")
      ->delimiter(',')
      ->check(CLI::IsMember(features()));
  app.add_flag("--all", options.go_on, "goes on after a trace that breaks");
  CLI11_PARSE(app, argc, argv);
  world::Ground::shape({kDevices, kDevicePages * kPage});
  Counts<kCounts> sum{};
  const bool all_well = play_in_jobs(
      options.seeds, sum,
      [&](std::uint64_t seed, Counts<kCounts>& counts) { return play(options, seed, counts); });
  std::printf("%" PRIu64 " traces from seed %" PRIu64 " on, %" PRIu64 " broken; %" PRIu64
              " switches, of which %" PRIu64 " failed; %" PRIu64 " waits; %" PRIu64
              " deaths of amemd\n",
              sum[kPlayed], options.seeds.first, sum[kBroken], sum[kSwitches], sum[kFailed],
              sum[kWaits], sum[kDeaths]);
  return all_well && sum[kBroken] == 0 ? 0 : 1;
}

}  // namespace
}  // namespace amem::stage_traces

int main(int argc, char** argv) { return amem::stage_traces::run(argc, argv); }
