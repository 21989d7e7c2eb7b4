// The CUDA driver as this process finds it: whether it can do what amem needs. look_at_driver()
// makes no context and takes no device memory.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "client/ctl/diagnosis/finding.h"

namespace amem::ctl {

struct DriverFacts {
  struct Gpu {
    std::string uuid;  // "GPU-…"
    std::string name;
    bool cumem = false;        // cuMemCreate, and handles that are file descriptors
    bool host_memory = false;  // cuMemCreate on the host's NUMA nodes
    bool multicast = false;
    int generation = 0;  // compute capability, 90 for 9.0; 0: not known
  };
  enum class Trouble { kNone, kMissing, kInit, kHangs };
  Trouble trouble = Trouble::kNone;
  int result = 0;     // kInit: of the call
  std::string error;  // what the loader or the driver says
  int version = 0;    // of the driver's API, 13010 for 13.1; 0: not known
  std::vector<Gpu> gpus;
  std::vector<std::pair<std::string, std::string>> strangers;  // UUIDs of GPUs without peer access
};

/// Loads libcuda.so.1 and asks it, on a thread that is left behind when the driver hangs.
DriverFacts look_at_driver(std::chrono::milliseconds timeout);

/// Pure. `environment`: for the remedy.
Findings check_driver(const DriverFacts& facts, const Environment& environment);

}  // namespace amem::ctl
