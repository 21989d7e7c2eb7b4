// BrokeredMemory: the broker's allocations that this process has, and the lock on them.
//
// The table, and what both sides do with its entries: the program's calls (Handles, Mappings), on
// any thread, and the phases (Residency), on the service thread. Calls that change memory come
// through the gate. So none of them runs during the phases' functions, except in a resume of chosen
// tags, whose memory returns to a group that runs. Then a call that would take away what is
// arriving waits until the resume has ended. The lock is held over driver calls, never over a wait
// for the broker.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/driver.h"
#include "common/fd.h"
#include "shim/memory/allocation_table.h"
#include "shim/session/session.h"

namespace amem::shim {

/// How long the broker takes to answer when it has nothing else to do.
inline constexpr std::chrono::microseconds kUsualAnswer{200};

/// For messages: "allocation 7 (2097152 bytes, device 0)".
std::string describe(const BrokeredAllocation& a);

struct BrokeredMemory {
  BrokeredMemory(const Driver& driver, Session& session) : driver_(driver), session_(session) {}

  std::mutex mutex;  // guards table, redeeming and what the REQUIRES below name
  AllocationTable table;
  std::map<std::uint64_t, unsigned> redeeming;  // calls under way, by allocation

  // ---- REQUIRES, of all of these: the lock is held ----
  /// The driver's handle of what the broker sent.
  CUresult import_descriptor(CUmemGenericAllocationHandle* real, const Fd& fd) const;
  /// The driver's handle, fetched again from a mapping when the program had released all of its
  /// own.
  CUresult ensure_real(BrokeredAllocation& a) const;
  void drop_real(BrokeredAllocation& a);
  /// Drops what was made for a resume: the resume has failed, or nobody needs it.
  void drop_made(BrokeredAllocation& a);
  /// After a reference or mapping went: lets go of what nothing needs any more.
  void drop_unneeded(BrokeredAllocation& a);
  void tell_free(std::uint64_t id);
  /// Waits while something is on its way back. False: the time is up, or the process is ending.
  bool wait_arrival(std::unique_lock<std::mutex>& lock, const std::function<bool()>& arriving);
  /// The mappings in a range once none of them is on its way back. Nothing: the time is up.
  std::optional<std::vector<Mapping*>> await_arrivals(std::unique_lock<std::mutex>& lock,
                                                      CUdeviceptr address, std::size_t size);
  /// Memory that was on its way back has arrived, or has gone again.
  void forget_arrivals();
  /// Tries again to release handles that the driver has refused to.
  Status release_refused();

  // ---- the lock is taken ----
  /// For the next broker: what the rank holds, with what `mark` says that it has been given.
  /// `mark` is called with the lock held.
  std::vector<amem_v1_Inventory_Item> list(const std::function<std::vector<std::uint64_t>()>& mark);
  /// Waits until the broker has freed all that this process has given up.
  void await_frees();
  /// Memory that waits for a resume is free, but the driver does not know that. How much waits on
  /// this device, of all groups.
  std::uint64_t spare_bytes(const DeviceUuid& device);
  /// The driver lacks memory, so nothing is to wait any more on this process's devices.
  void close_spares();
  /// The process is ending: nobody waits for memory that is on its way back any more.
  /// Without the lock, which a phase holds over driver calls.
  void end() { ending_.store(true, std::memory_order_relaxed); }
  /// The program has it still.
  bool has(std::uint64_t id);
  bool is_empty();
  /// The program has it still, and it is not on its device.
  bool is_paused(std::uint64_t id);
  /// Bytes of allocations that are not on their devices, or on their way back.
  std::uint64_t bytes_paused();
  /// Bytes of allocations that are on their devices.
  std::uint64_t bytes_here();
  /// For messages: describe(), and its tag.
  std::string name(std::uint64_t id);

  struct Totals {
    std::uint64_t owned_bytes = 0;
    std::uint64_t imported_bytes = 0;
    std::uint64_t allocations = 0;
    std::uint64_t mappings = 0;
  };
  Totals totals();

  /// What there is of one tag on one device.
  struct TagUsage {
    std::string tag;
    int device = 0;
    std::uint64_t resident_bytes = 0;  // own
    std::uint64_t paused_bytes = 0;    // own, while the group is paused
    std::uint64_t imported_bytes = 0;  // of peers
    std::uint64_t allocations = 0;
  };
  /// By tag and device.
  std::vector<TagUsage> usage();

 private:
  void release_handle(const BrokeredAllocation& a, std::uint64_t& handle);
  /// The bytes of spares on its device. `why`: for the log, if that fails.
  std::uint64_t ask_to_await_closed(const amem_v1_AwaitClosed& what, const char* why);

  const Driver& driver_;
  Session& session_;
  std::condition_variable arrivals_;  // some have ended
  /// Handles that the driver has refused to release; guarded by the lock.
  std::vector<CUmemGenericAllocationHandle> refused_;
  std::atomic<bool> ending_{false};
  std::atomic<std::uint64_t> frees_sent_{0};
  std::atomic<std::uint64_t> frees_awaited_{0};  // of these, asked about
};

}  // namespace amem::shim
