// Options of amem_nccl_cycle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpu_test {

enum class Mode { kProcess, kThreads, kSingle };
enum class Pause {
  kAuto,
  kInside,
  kOutside,
  kNone,
  kSuspend,   // ncclCommSuspend and ncclCommResume, NCCL's own
  kRecreate,  // the communicators are destroyed and made anew
};

struct Options {
  Mode mode = Mode::kProcess;
  Pause pause = Pause::kAuto;
  int gpus = 0;           // and ranks; 0: all
  bool share = false;     // ranks may be more than there are GPUs
  int hosts = 0;          // > 0: so many hosts to NCCL, with as many ranks each, one after another
  bool in_place = false;  // in every other round, where the operation can be
  int comms = 4;
  bool split = false;    // later communicators by ncclCommSplit of the first
  bool subsets = false;  // and three of parts of the ranks
  int cycles = 20;
  int paused_ms = 0;        // between a pause and its resume
  double loop_seconds = 0;  // > 0: no cycles; collectives in a loop
  std::size_t max_bytes = 64U << 20;
  std::size_t check_bytes = 0;  // largest that is verified after the first round; 0: max_bytes
  bool bench = false;           // figures instead of checks of the broker's memory
  bool time_collectives = false;
  bool capture = false;  // and time small ones and an empty kernel in a graph, too
  int warm_up = 300;     // times 50 small collectives before those that are timed
  bool pause_all_threads = false;
  bool memory_checks = true;
  int tolerance_mib = 16;
  int watchdog_seconds = 60;
  std::string group;
  std::vector<std::string> runtime_dirs;  // of each node's broker; empty: the environment's
  std::string nccl;
  std::string progress;
  std::string stop_file;
};

}  // namespace gpu_test
