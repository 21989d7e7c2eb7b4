// The checks of `amemctl doctor`. Each looks at one thing and answers with what it has found;
// nothing: all is well. They read files and ask the driver and the broker, and change nothing.
// Plain functions; any thread.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "addons/tools/diagnosis/program.h"
#include "amem/v1/broker.pb.h"
#include "client/ctl/preload.h"

namespace amem::ctl {

struct Finding {
  bool blocks = false;  // the processes would not be brokered; else it only matters
  std::string check;    // a name for programs
  std::string what;
  std::string why;  // it matters
  std::string remedy;
};

using Findings = std::vector<Finding>;

// Of the command, in checks.cpp.

/// The loader preloads nothing into static programs, those of another architecture or C library,
/// and those that gain rights. `user` and `group` are those that run it.
Findings check_program(const CommandProgram& program, uid_t user, gid_t group);

/// LD_PRELOAD names the shim, it can be loaded, and nothing comes before it.
Findings check_preload(const Environment& environment);

/// The variables with those that the shim takes for set where it is torch_memory_saver's hook
/// library.
Environment with_hook_defaults(Environment environment);

/// Variables that turn amem off, or change what the shim does.
Findings check_variables(const Environment& environment);

// Of allocators whose memory amem leaves on the GPU, in allocators.cpp.

/// Variables by which a framework uses such an allocator. Problems of a command whose AMEM_SCOPE is
/// to have that memory.
Findings check_allocators(const Environment& environment);

/// Such variables where nobody says which command they are for: warnings.
Findings check_allocators_of_jobs(const Environment& environment);

/// RLIMIT_NOFILE and RLIMIT_MEMLOCK.
Findings check_limits(rlim_t open_files, rlim_t locked_memory);

/// `libnccl` is a file, or empty when none was found.
Findings check_nccl(const std::string& libnccl);

// Of the host, in host_check.cpp.

/// What amem asks of the host beside the driver. docs/getting-started.md has the table of
/// requirements.
struct HostFacts {
  std::string kernel;    // "6.1.0-18-amd64"
  std::string mps_pipe;  // the socket of an MPS daemon; empty: none
};

/// Reads the facts of this host. `environment`: the variables of the processes that amem is to
/// broker; CUDA_MPS_PIPE_DIRECTORY counts.
HostFacts look_at_host(const Environment& environment);

/// Pure.
Findings check_host(const HostFacts& facts);

/// The CUDA driver as this process finds it.
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

/// Loads libcuda.so.1 and asks it, on a thread that is left behind when the driver hangs. Makes no
/// context and takes no device memory.
DriverFacts look_at_driver(std::chrono::milliseconds timeout);

/// Pure: whether it can do what amem needs. `environment`: for the remedy.
Findings check_driver(const DriverFacts& facts, const Environment& environment);

// Of the broker, in broker_check.cpp.

/// Connects to the sockets in `runtime_dir` and asks for the broker's version, as far as this user
/// may. Says nothing as a rank, so no group changes.
Findings check_broker_in(const std::string& runtime_dir, std::chrono::milliseconds timeout);

/// The soft limit of open files of a process, from /proc/PID/limits; nothing: this user may not
/// read it, or the process is elsewhere.
std::optional<std::uint64_t> open_files_of(std::int64_t pid);

/// Pure. `driver`: this process's, whose GPUs amemd must have too. `open_files`: amemd's limit.
Findings check_node(const v1::NodeStatus& status, const DriverFacts& driver,
                    std::optional<std::uint64_t> open_files);

/// Pure. Driver calls that ranks' shims do not know, and that nobody has signed off; memory that
/// pauses of their groups leave on the GPU because amem does not broker it.
Findings check_ranks(const v1::ListRanksResponse& ranks);

}  // namespace amem::ctl
