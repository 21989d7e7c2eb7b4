// Runtime: the shim's one instance in a process, and the only place that decides whether it acts at
// all.
//
// Made when the program first asks for a CUDA driver entry point; opens the session at the first
// brokered call. Never destroyed: the driver may be called from static destructors.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/driver.h"
#include "shim/base/options.h"
#include "shim/base/region.h"
#include "shim/blocks/heap.h"
#include "shim/blocks/ipc.h"
#include "shim/blocks/slabs.h"
#include "shim/copies/mover.h"
#include "shim/driver/local_devices.h"
#include "shim/gate/captures.h"
#include "shim/gate/gate.h"
#include "shim/memory/memory.h"
#include "shim/phases/cut_monitor.h"
#include "shim/phases/phases.h"
#include "shim/phases/report.h"
#include "shim/phases/work_report.h"
#include "shim/process/bypass.h"
#include "shim/process/exit_handler.h"
#include "shim/scratch/scratch.h"
#include "shim/session/session.h"

namespace amem::shim {

/// What a rank asks of its group: for the memory with one of `tags`, or for memory with none of
/// `except`, or for all.
struct GroupRequest {
  amem_v1_GroupOp op = amem_v1_GroupOp_GROUP_OP_UNSPECIFIED;
  std::vector<std::string> tags = {};
  std::vector<std::string> except = {};
  std::vector<std::string> discard = {};  // a pause drops the bytes of these
  amem_v1_GuestRule guests = amem_v1_GuestRule_GUEST_RULE_UNSPECIFIED;
  bool deep = false;   // a pause of everything: the processes are checkpointed afterwards
  bool force = false;  // `discard` may have "heap"
  // It is one with those of this number of ranks that name the same set. Empty: there is no set.
  std::string set = {};
  std::uint32_t set_ranks = 0;
};

class Runtime {
 public:
  /// The instance. Makes it at the first call. Any thread.
  static Runtime& get();
  /// AMEM_DISABLE=1: every lookup and call passes through untouched. Reads the environment, makes
  /// nothing.
  static bool disabled();

  /// Opens the session when that has not been tried yet. False: this process is on its own (no
  /// broker, refused, lost, forked), and its calls go to the driver; said once in the log.
  bool connected();
  /// This is a child of fork without exec, whose parent had asked for a broker.
  bool forked() const { return forked_.load(std::memory_order_relaxed); }

  /// The caller is NCCL, and its memory is brokered.
  bool brokers(const void* code_address) const;
  /// Under what the memory that this thread allocates now is brokered; nothing: it is not, as in a
  /// child of fork.
  std::optional<Label> label(const void* code_address);

  /// Asks the broker, and waits for its Reply.
  Status ask(Message& request, std::chrono::milliseconds deadline);
  /// As Session::withdraw().
  void withdraw(pid_t thread) {
    if (opened_.load(std::memory_order_acquire) && !forked()) session_.withdraw(thread);
  }

  /// Changes the group; only before the session is open.
  Status set_group(const std::string& name);
  std::string group();

  Captures& captures() { return captures_; }
  Memory& memory() { return memory_; }
  Slabs& slabs() { return slabs_; }
  /// The heap; nullptr before the driver has been needed, and in a child of fork.
  Heap* heap() { return driver_loaded_.load(std::memory_order_acquire) ? &heap_ : nullptr; }
  /// Returns what `ask` returns, a call for which the driver takes memory of its own. If it finds
  /// none, has all freed that nobody uses, here and at the broker, and asks once more. The caller
  /// may be inside the gate or outside.
  template <class Ask>
  static CUresult ask_driver(const Ask& ask) {
    const CUresult answer = ask();
    if (answer != CUDA_ERROR_OUT_OF_MEMORY) [[likely]]
      return answer;
    return get().free_for_driver() ? ask() : answer;
  }
  /// For accounting of what goes to the driver. The driver must have answered a call before.
  /// nullptr: it cannot be told where memory is.
  LocalDevices* devices() { return !forked() && load_driver().ok() ? &devices_ : nullptr; }
  Report& report() { return report_; }
  /// Brokered and other memory of this process, as JSON.
  std::string stats();
  Ipc& ipc() { return ipc_; }
  const Options& options() const { return options_; }
  /// The device is about to get its first brokered allocation: prepares copies to and from it in
  /// the background.
  void device_used(int device);
  /// The program has reset the device, and with it the shim's own context and stream there.
  void device_reset(int device);

 private:
  Runtime();
  /// In a child of fork. `forked`: it stays on its own.
  Runtime(Options options, bool alone, bool forked);
  Status open();
  /// Joins for it, too: what waits for a resume is closed for a process that joins. False: there
  /// is no driver, or this is a child of fork.
  bool free_for_driver();
  /// REQUIRES: not forked().
  Status load_driver();
  static void after_fork_in_child();
  static void process_ends();
  static void driver_ends();
  friend struct BackupAccess;  // shim/runtime/backup.cpp
  bool is_nccl(const char* file) const;
  void name_group_of_one();

  Options options_;
  /// A group of one process: its NCCL shares memory with processes of other groups, so that stays
  /// the driver's.
  std::atomic<bool> alone_{false};
  int named_by_ = 0;  // the process that has made its name
  Driver driver_;
  LocalDevices devices_{driver_};
  Gate gate_;
  Captures captures_{gate_};
  Session session_;
  Memory memory_{driver_, devices_, gate_, session_};
  Slabs slabs_{driver_, devices_, memory_, options_.slab_size};
  Heap heap_{driver_, devices_, gate_, memory_, session_};
  Ipc ipc_{driver_, devices_, memory_};
  Report report_{driver_, devices_, memory_, session_};
  Scratch scratch_{driver_, devices_, memory_, slabs_, heap_, options_};
  Mover mover_{driver_, devices_, memory_, scratch_, options_};
  Bypass bypass_{options_.bypass_allowed};
  CutMonitor cut_{driver_, devices_, gate_, heap_, bypass_, session_};
  ExitHandler before_driver_{&Runtime::driver_ends};
  ExitHandler exit_{&Runtime::process_ends};
  WorkReport work_{devices_, gate_, session_};
  Phases phases_{driver_, devices_, gate_, memory_,  mover_, scratch_, cut_,
                 report_, work_,    heap_, session_, exit_,  options_};

  std::mutex driver_mutex_;  // guards loading
  std::atomic<bool> driver_loaded_{false};
  std::mutex mutex_;  // guards opening, options_.group, named_by_, prepared_devices_
  bool tried_ = false;
  std::uint64_t prepared_devices_ = 0;  // bit per ordinal
  std::atomic<bool> opened_{false};
  std::atomic<bool> forked_{false};
};

/// The process's gate, for the wrappers' fast path. Set when the Runtime is made, before any
/// wrapper is handed out.
extern Gate* the_gate;

/// The instance, if there is one: a process that has used no driver has none.
Runtime* runtime_if_made();

/// Pause or resume asked from inside. 0: the configured time-out.
Status group_request(Runtime& runtime, const GroupRequest& what, std::uint32_t timeout_ms);
/// Sets what a pause does from now on with the bytes of a tag of the group.
Status set_policy(Runtime& runtime, const std::string& tag, amem_v1_RegionPolicy policy,
                  bool force);

}  // namespace amem::shim
