// Options: the shim's environment variables, read once at the first call that needs them. Plain
// data.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/packet.h"
#include "common/status.h"

namespace amem::shim {

enum class LogLevel { kError, kWarn, kInfo, kDebug };

/// Whose device memory is brokered; each includes the one before.
enum class Scope {
  kNccl,     // what NCCL's modules get from cuMemCreate or cuMemAlloc
  kRegions,  // and what a thread allocates inside a region (shim/base/region.h)
  kHeap,     // and what anybody allocates with cuMemCreate or cuMemAlloc
};
/// As AMEM_SCOPE names it.
const char* to_string(Scope scope);

/// What a rank does if its memory is paused and its broker does not return.
enum class OrphanRule {
  kWait,     // for a broker, without a limit
  kExit,     // ends the process
  kRestore,  // restores the bytes that nobody else has, without a broker, and goes on without amem
};

/// What a pause does with those bytes of NCCL's buffers that hold nothing between collectives.
enum class NcclScratch {
  kKeep,
  kDrop,   // where that is proven for NCCL's version
  kProve,  // whatever the version; a resume restores them as a pattern that no collective may read
};

struct Options {
  bool disabled = false;  // AMEM_DISABLE=1, or AMEM_ENABLE=0
  bool required = false;  // AMEM_REQUIRED=1: without a broker, brokered calls fail instead of going
                          // to the driver
  std::string group = "default";  // AMEM_GROUP; else AMEM_GROUPID (a number, as in AMem)
  std::string job;                // of the group: AMEM_JOB, or its launcher's (common/job.h)
  std::string stage;              // AMEM_STAGE: in which the group takes turns; empty: none
  std::string runtime_dir;        // AMEM_RUNTIME_DIR; else common/protocol.h's default
  std::vector<std::string> modules = {
      "libnccl"};  // AMEM_MODULES: prefixes of the file names that count as NCCL
  // AMEM_BYPASS_ALLOWED: prefixes of the file names of libraries that may reach the driver past the
  // shim (shim/process/bypass.h)
  std::vector<std::string> bypass_allowed;
  Scope scope = Scope::kNccl;  // AMEM_SCOPE=nccl|regions|heap
  std::string trace;           // AMEM_TRACE: file to write calls to; %p is the pid
  bool nvls = false;           // AMEM_NVLS=1: NCCL may use multicast, with brokered memory
  bool verify = false;         // AMEM_VERIFY=1: checksums of what is saved and loaded
  // AMEM_SHIM_WITHOUT: a list of what the shim does without
  bool unmap_ahead = true;      // unmap_ahead: a pause unmaps nothing before all is saved
  bool clear_deepbind = false;  // deepbind: dlopen ignores RTLD_DEEPBIND
  // slabs: bytes; 0: none; nothing: as the device's memory allows
  std::optional<std::uint64_t> slab_size;
  bool gate_waits = true;                       // AMEM_GATE=wait|error|TIME
  std::chrono::seconds gate_timeout{};          // 0: none
  std::optional<std::chrono::seconds> timeout;  // AMEM_TIMEOUT: of pauses and resumes from inside
  std::chrono::milliseconds reconnect{30'000};  // AMEM_RECONNECT: to a new broker; 0: never
  OrphanRule orphan = OrphanRule::kWait;        // AMEM_ORPHAN=wait|exit|restore
  LogLevel log_level = LogLevel::kWarn;         // AMEM_LOG=error|warn|info|debug
  // AMEM_NCCL_SCRATCH=keep|drop|prove; drop with AMEM_NCCL_OFFLOAD_FREE_TAG
  NcclScratch nccl_scratch = NcclScratch::kKeep;

  // ---- by torch_memory_saver's launchers ----
  bool alone = false;          // no group is named: this process is a group of its own
  bool whole_process = false;  // TMS_INIT_ENABLE=1, and scope heap: the heap is a region
  amem_v1_RegionPolicy heap_policy = amem_v1_RegionPolicy_REGION_POLICY_UNSPECIFIED;
  std::uint64_t memory_margin = 0;  // TMS_MEMORY_MARGIN_BYTES

  /// How to look up a variable; nullptr when it is not set. getenv in the program, a table in the
  /// tests.
  using Getenv = const char* (*)(const char* name);

  /// Reads the options. A value that cannot be understood keeps its default and adds a line to
  /// `complaints`. `library`: the file name of the shim in this process.
  static Options parse(Getenv getenv, std::vector<std::string>& complaints,
                       std::string_view library = {});
};

/// A variable's value; empty when it is not set.
std::string_view value_of(Options::Getenv getenv, const char* name);

}  // namespace amem::shim
