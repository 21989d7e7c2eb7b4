#include "tests/workload/program/options.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>

namespace amem::workload {
namespace {

std::chrono::milliseconds Seconds(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

}  // namespace

Options ParseOptions(int argc, char** argv) {
  Options options;
  double kernel_timeout = 30;
  double peer_timeout = 30;
  CLI::App app{
      "Plays NCCL on the simulated driver: allocates, shares and maps memory in NCCL's pattern, "
      "runs collectives, and "
      "obeys commands on stdin with one line of JSON each (tests/workload/manual.md)."};
  app.add_option("--rank", options.rank, "Rank number, the first of this process")->envname("RANK");
  app.add_option("--ranks", options.ranks, "Ranks of the job")->envname("WORLD_SIZE");
  app.add_option("--devices-per-process", options.devices_per_process,
                 "Ranks in this process, one device and thread each");
  app.add_option("--device", options.device,
                 "Device of the first rank (default: rank modulo the number of devices)");
  app.add_option("--rendezvous", options.rendezvous,
                 "Existing directory where the ranks of the job meet; needed for more than one");
  app.add_option("--communicators", options.communicators, "Communicators, each with its stream")
      ->check(CLI::Range(1, 64));
  app.add_option("--loop-threads", options.loop_threads,
                 "Threads that launch a rank's collectives in a loop, each for its share of the "
                 "communicators")
      ->check(CLI::Range(1, 64));
  app.add_option("--depth", options.depth, "Launches of a loop between two synchronisations")
      ->check(CLI::Range(1, 1024));
  app.add_option("--kernel-timeout", kernel_timeout, "Seconds a collective waits for its peers");
  app.add_option("--peer-timeout", peer_timeout, "Seconds to wait for peers while starting");
  CLI::Option* trace =
      app.add_option("--trace", options.trace, "Replay this trace; %r stands for the rank");
  app.add_option("--scale", options.scale, "Divide the trace's sizes by this")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(trace);
  app.add_flag("--teardown", options.teardown, "Replay the trace's teardown run too, at exit")
      ->needs(trace);
  app.add_option("--allocations", options.allocations, "Synthetic: allocations")->excludes(trace);
  app.add_option("--bytes", options.bytes, "Synthetic: bytes of each, rounded up")
      ->transform(CLI::AsSizeValue(false))
      ->excludes(trace);
  app.add_option("--shared", options.shared, "Synthetic: fraction that every peer imports")
      ->check(CLI::Range(0.0, 1.0))
      ->excludes(trace);
  app.add_flag(
         "--network", options.network,
         "Synthetic, ranks on several nodes: communicators' buffers in memory of the host, and "
         "nothing else is shared")
      ->excludes(trace);
  app.add_option("--zeros", options.zeros, "Percent of the 64-KiB blocks that are zero")
      ->check(CLI::Range(0, 100));
  try {
    app.parse(argc, argv);
    if (options.rank < 0 || options.devices_per_process < 1 ||
        options.rank + options.devices_per_process > options.ranks) {
      throw CLI::ValidationError("--rank", "the process's ranks must be below --ranks");
    }
    if (options.ranks > 1 && options.rendezvous.empty()) {
      throw CLI::ValidationError("--rendezvous", "needed for more than one rank");
    }
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  options.kernel_timeout = Seconds(kernel_timeout);
  options.peer_timeout = Seconds(peer_timeout);
  return options;
}

}  // namespace amem::workload
