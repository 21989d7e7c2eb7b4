// amem_nccl_cycle: NCCL collectives, every result compared in full, across pauses of the process
// group.
//
// It uses libnccl and the driver API alone and knows amem only by its public calls, so it also
// shows that a program runs unchanged without amem. It forks one process per GPU, or one for all
// GPUs, and watches them.
//
// Exit status: 0 all right, 1 a check failed, 2 wrong options, 77 not enough GPUs or no NCCL, 124
// hung.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "tests/gpu/nccl/cycle.h"
#include "tests/gpu/nccl/supervisor.h"

namespace gpu_test {
namespace {

constexpr int kUsage = 2;

// Each node has as many ranks, one after another, as launchers place them.
std::size_t node_of(int rank, int world, std::size_t nodes) {
  return static_cast<std::size_t>(rank) * nodes / static_cast<std::size_t>(world);
}

// The body of one process: `count` ranks from `first` on.
[[noreturn]] void be_ranks(Control& control, const Options& options, int first, int count,
                           int world) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  install_stack_dumper();
  // As launchers do: the broker shows it to people.
  ::setenv("RANK", std::to_string(first).c_str(), 1);
  ::setenv("LOCAL_RANK", std::to_string(first).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(world).c_str(), 1);
  if (const auto& dirs = options.runtime_dirs; !dirs.empty())
    ::setenv("AMEM_RUNTIME_DIR", dirs[node_of(first, world, dirs.size())].c_str(), 1);
  // NCCL refuses two ranks of a host on one GPU.
  const auto hosts = static_cast<std::size_t>(options.share ? world : options.hosts);
  if (hosts > 0)
    ::setenv("NCCL_HOSTID", ("host" + std::to_string(node_of(first, world, hosts))).c_str(), 1);
  Cuda cuda;
  Nccl nccl;
  set_current(&control.ranks[static_cast<std::size_t>(first)], first);
  if (const auto status = cuda.load_all(); !status.ok()) fail(status.text());
  if (const CUresult result = cuda.cuInit_(0); result != CUDA_SUCCESS)
    fail("cuInit: " + cuda.name(result));
  if (const auto status = nccl.load(options.nccl); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.text().c_str());
    ::_exit(kSkipped);
  }
  const PauseCalls calls = PauseCalls::find(nccl.library);
  const SuspendCalls suspend = SuspendCalls::find(nccl.library);
  const auto crew = [&](int first_of_crew, int size) {
    set_current(&control.ranks[static_cast<std::size_t>(first_of_crew)], first_of_crew);
    Crew self(cuda, nccl, control, options, first_of_crew, size, world);
    run_crew(self, options, calls, suspend);
  };
  if (options.mode == Mode::kThreads) {
    std::vector<std::thread> threads;
    for (int r = 0; r < count; ++r) threads.emplace_back(crew, first + r, 1);
    for (std::thread& thread : threads) thread.join();
  } else {
    crew(first, count);
  }
  std::fflush(nullptr);
  std::exit(0);  // and not _exit: libraries' own clean-up is part of the test
}

std::vector<pid_t> start_ranks(Control& control, const Options& options, int world) {
  const int processes = options.mode == Mode::kProcess ? world : 1;
  std::vector<pid_t> started;
  for (int p = 0; p < processes; ++p) {
    const pid_t child = ::fork();
    if (child == 0) be_ranks(control, options, p, world / processes, world);
    if (child < 0) {
      std::perror("fork");
      for (const pid_t other : started) ::kill(other, SIGKILL);
      return {};
    }
    started.push_back(child);
  }
  return started;
}

// ---- report
// -----------------------------------------------------------------------------------------------------

// A cycle's time is its slowest rank's.
std::vector<double> milliseconds(const Control& control, int world, int cycles,
                                 const std::array<std::uint32_t, kMaxCycles> RankSlot::*times) {
  std::vector<double> out;
  for (int k = 0; k < cycles; ++k) {
    std::uint32_t slowest = 0;
    for (int r = 0; r < world; ++r)
      slowest = std::max(slowest, (control.ranks[static_cast<std::size_t>(r)].*
                                   times)[static_cast<std::size_t>(k)]);
    if (slowest > 0) out.push_back(slowest / 1000.0);
  }
  return out;
}

// `warm`: the first one is named, and not counted.
void print_times(const char* what, std::vector<double> ms, bool warm) {
  if (ms.empty()) return;
  const double first = ms.front();
  if (warm && ms.size() > 1) ms.erase(ms.begin());
  std::sort(ms.begin(), ms.end());
  std::printf(R"(, "%s_ms": {"n": %zu, "first": %.2f, "median": %.2f, "min": %.2f, "max": %.2f})",
              what, ms.size(), first, ms[ms.size() / 2], ms.front(), ms.back());
}

void print_memory(const MemoryFigures& m, bool bench) {
  const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1048576.0; };
  if (bench) {
    std::printf(R"({"context_only": %.1f, "running": %.1f, "paused": %.1f})", mib(m.context_only),
                mib(m.running), mib(m.paused_max));
    return;
  }
  std::printf(R"({"context_only": %.1f, "after_destroy": %.1f, "running": %.1f, "brokered": %.1f, )"
              R"("paused_min": %.1f, "paused_max": %.1f, "freed_min": %.1f})",
              mib(m.context_only), mib(m.after_destroy), mib(m.running), mib(m.brokered_running),
              mib(m.paused_min), mib(m.paused_max), mib(m.freed_min));
}

void print_timed(const RankSlot& slot) {
  std::printf(R"(, "timed": [)");
  const char* separator = "";
  for (std::size_t i = 0; i < kTimed.size(); ++i) {
    if (slot.timed_us[0][i] <= 0) continue;
    std::printf(R"(%s{"bytes": %zu, "captured": %s, "first_us": %.3f, "after_us": [)", separator,
                kTimed[i].bytes, kTimed[i].captured ? "true" : "false", slot.timed_us[0][i]);
    separator = ", ";
    for (std::size_t k = 1; k < slot.timed_us.size() && slot.timed_us[k][i] > 0; ++k)
      std::printf("%s%.3f", k > 1 ? ", " : "", slot.timed_us[k][i]);
    std::printf("]}");
  }
  std::printf("]");
}

void report(const Control& control, const Options& options, int world) {
  constexpr const char* kModes[] = {"process", "threads", "single"};
  std::uint64_t verified = 0;
  std::uint64_t iterations = UINT64_MAX;
  std::uint64_t init_us = 0;
  for (int r = 0; r < world; ++r) {
    const RankSlot& slot = control.ranks[static_cast<std::size_t>(r)];
    verified += slot.verified.load();
    iterations = std::min(iterations, slot.iterations.load());
    init_us = std::max(init_us, slot.comm_init_us);
  }
  std::printf(R"({"program": "amem_nccl_cycle", "mode": "%s", "ranks": %d, "comms": %d, )"
              R"("comm_init_ms": %.1f, "verified": %llu, "iterations": %llu)",
              kModes[static_cast<int>(options.mode)], world,
              options.comms + (options.subsets ? 3 : 0), static_cast<double>(init_us) / 1000.0,
              static_cast<unsigned long long>(verified),
              static_cast<unsigned long long>(iterations));
  print_times("pause", milliseconds(control, world, options.cycles, &RankSlot::pause_us),
              options.bench);
  print_times("resume", milliseconds(control, world, options.cycles, &RankSlot::resume_us),
              options.bench);
  if (options.bench) {
    std::uint64_t startup_us = 0;
    for (int r = 0; r < world; ++r)
      startup_us = std::max(startup_us, control.ranks[static_cast<std::size_t>(r)].startup_us);
    std::printf(R"(, "startup_ms": %.1f)", static_cast<double>(startup_us) / 1000.0);
  }
  if (options.time_collectives) print_timed(control.ranks[0]);
  if (control.ranks[0].memory.paused_max > 0 || options.bench) {
    std::printf(R"(, "device_mib": [)");
    for (int r = 0; r < world; ++r) {
      if (r > 0) std::printf(", ");
      print_memory(control.ranks[static_cast<std::size_t>(r)].memory, options.bench);
    }
    std::printf("]");
  }
  std::printf("}\n");
}

// ---- options
// ----------------------------------------------------------------------------------------------------

int run(int argc, char** argv) {
  Options o;
  CLI::App app{"NCCL collectives, verified, across pauses"};
  const std::map<std::string, Mode> modes = {
      {"process", Mode::kProcess}, {"threads", Mode::kThreads}, {"single", Mode::kSingle}};
  const std::map<std::string, Pause> pauses = {
      {"auto", Pause::kAuto}, {"inside", Pause::kInside},   {"outside", Pause::kOutside},
      {"none", Pause::kNone}, {"suspend", Pause::kSuspend}, {"recreate", Pause::kRecreate}};
  app.add_option("--mode", o.mode, "one process per GPU, or one with a thread each, or one thread")
      ->transform(CLI::CheckedTransformer(modes));
  app.add_option(
         "--pause", o.pause,
         "who pauses: ncclPause in every rank, amemctl, nobody; or NCCL's ncclCommSuspend; or "
         "communicators are destroyed and made anew")
      ->transform(CLI::CheckedTransformer(pauses));
  app.add_option("--gpus", o.gpus, "GPUs to use, 0: all")->check(CLI::Range(0, kMaxRanks));
  app.add_flag("--share", o.share,
               "where there are fewer, processes share them, and are hosts of their own to NCCL");
  app.add_option("--hosts", o.hosts, "so many hosts to NCCL, with as many ranks each, 0: one")
      ->check(CLI::Range(0, kMaxRanks));
  app.add_flag("--in-place", o.in_place,
               "in every other round collectives that can be in place are");
  app.add_option("--comms", o.comms, "communicators of all ranks")
      ->check(CLI::Range(1, kMaxComms - 3));
  app.add_flag("--split", o.split, "make all but the first by ncclCommSplit");
  app.add_flag("--subsets", o.subsets, "and three of parts of the ranks");
  app.add_option("--cycles", o.cycles)->check(CLI::Range(0, kMaxCycles));
  app.add_option("--paused-ms", o.paused_ms, "milliseconds between a pause and its resume")
      ->check(CLI::Range(0, 10000));
  app.add_option("--loop", o.loop_seconds, "run collectives for so many seconds, without cycles")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max-bytes", o.max_bytes, "largest buffer")
      ->check(CLI::Range(std::size_t{64} << 10, std::size_t{1} << 30));
  app.add_option("--check-bytes", o.check_bytes,
                 "largest collective that is verified after the first round");
  app.add_flag("--bench", o.bench, "figures instead of checks of the memory");
  app.add_flag("--time-collectives", o.time_collectives,
               "time all-reduces of 8 B to 256 MiB, as far as --max-bytes goes, before the first "
               "cycle and after each");
  app.add_flag("--capture", o.capture,
               "and the small ones and an empty kernel in a CUDA graph, too")
      ->needs("--time-collectives");
  app.add_option("--warm-up", o.warm_up,
                 "times 50 small collectives go before those that are timed")
      ->check(CLI::Range(1, 100000));
  app.add_flag("--pause-all-threads", o.pause_all_threads, "with threads: all ask at once");
  app.add_flag("!--no-memory-checks", o.memory_checks, "where others use the GPUs too");
  app.add_option("--tolerance-mib", o.tolerance_mib)->check(CLI::NonNegativeNumber);
  app.add_option("--watchdog", o.watchdog_seconds, "seconds without progress until it is a hang")
      ->check(CLI::PositiveNumber);
  app.add_option("--group", o.group, "the ranks' group")->envname("AMEM_GROUP");
  app.add_option("--runtime-dir", o.runtime_dirs,
                 "the runtime directory of the first node's broker, of the second's, ...");
  app.add_option("--nccl", o.nccl, "libnccl.so.2 to use");
  app.add_option("--progress", o.progress, "file for the number of iterations so far");
  app.add_option("--stop-file", o.stop_file, "end the loop as soon as this file exists");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }

  const int gpus = count_gpus();
  const int world = o.gpus == 0 ? gpus : o.gpus;
  o.share = o.share && o.mode == Mode::kProcess && gpus > 0 && world > gpus;
  if (world == 0 || (world > gpus && !o.share)) {
    std::fprintf(stderr, "skipped: %d GPUs, %d needed\n", gpus, std::max(world, 1));
    return kSkipped;
  }
  for (const int nodes : {o.hosts, static_cast<int>(o.runtime_dirs.size())})
    if (nodes > 0 && world % nodes != 0) {
      std::fprintf(stderr, "%d ranks cannot be placed on %d nodes, as many on each\n", world,
                   nodes);
      return kUsage;
    }
  Control* control = Control::create();
  if (control == nullptr) {
    std::perror("mmap");
    return 1;
  }
  const std::vector<pid_t> processes = start_ranks(*control, o, world);
  if (processes.empty()) return 1;
  const int result = supervise(processes, *control, world, o.watchdog_seconds, o.progress);
  if (result == 0) report(*control, o, world);
  return result;
}

}  // namespace
}  // namespace gpu_test

int main(int argc, char** argv) { return gpu_test::run(argc, argv); }
