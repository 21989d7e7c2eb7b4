// Memory: the program's brokered allocations, kept true to what the driver would have done with
// real ones.
//
// Answers the virtual memory calls for virtual handles and brokered addresses, talks to the broker
// about creation, tickets and release, and takes everything away and back again when the group
// pauses and resumes. Owns the table.
//
// Calls of the program: any thread; those that change memory come through the gate. So none of them
// runs during the phases' functions, which belong to the service thread, but for one case: memory
// that comes back to a group that runs (a resume of chosen tags). Then a call that would take away
// what is arriving waits until the resume has ended. The lock is held over driver calls, never over
// a wait for the broker.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/driver.h"
#include "common/fd.h"
#include "common/ticket.h"
#include "shim/base/region.h"
#include "shim/base/timings.h"
#include "shim/driver/devices.h"
#include "shim/memory/multicast.h"
#include "shim/memory/table.h"
#include "shim/session/session.h"

namespace amem::shim {

class Memory {
 public:
  Memory(const Driver& driver, Devices& devices, Session& session, Multicast& multicast)
      : driver_(driver), devices_(devices), session_(session), multicast_(multicast) {}

  // ---- calls of the program; results are what the driver would return ----
  CUresult create(CUmemGenericAllocationHandle* handle, std::size_t size,
                  const CUmemAllocationProp& prop, const Label& label);
  CUresult release(CUmemGenericAllocationHandle handle);
  CUresult export_ticket(int* fd, CUmemGenericAllocationHandle handle);
  /// A descriptor that holds the ticket.
  static CUresult write_ticket(int* fd, const Ticket& ticket);
  CUresult import_ticket(CUmemGenericAllocationHandle* handle, const Ticket& ticket);
  CUresult properties(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle);
  /// Of device memory that was asked for as NCCL and we ask for it.
  static CUmemAllocationProp properties_of(int device, bool gpu_direct_rdma);
  CUresult map(CUdeviceptr address, std::size_t size, std::size_t offset,
               CUmemGenericAllocationHandle handle, unsigned long long flags);
  // Nothing: the range is not brokered, ask the driver.
  std::optional<CUresult> retain(CUmemGenericAllocationHandle* handle, CUdeviceptr address);
  std::optional<CUresult> unmap(CUdeviceptr address, std::size_t size);
  std::optional<CUresult> set_access(CUdeviceptr address, std::size_t size,
                                     const CUmemAccessDesc* desc, std::size_t count);
  /// What cuMemGetAccess says of brokered memory, whether it is here or away.
  std::optional<unsigned long long> access(CUdeviceptr address, const CUmemLocation& location);
  std::optional<CUresult> address_range(CUdeviceptr* base, std::size_t* size, CUdeviceptr address);
  bool brokered(CUdeviceptr address, std::size_t size);
  /// A ticket for the whole allocation that is mapped at the address; nothing when none is.
  std::optional<Ticket> ticket_at(CUdeviceptr address);
  struct Known {
    std::uint64_t size = 0;
    int device = 0;  // -1: not visible in this process
    bool imported = false;
  };
  /// An allocation that this process has, by the broker's id.
  std::optional<Known> known(std::uint64_t id);
  /// A mapping whose memory is away: the driver knows nothing of it now.
  struct Absent {
    CUdeviceptr address = 0;
    std::uint64_t size = 0;
    int device = 0;
    bool gpu_direct_rdma = false;
    bool sync_memops = false;
  };
  std::optional<Absent> absent(CUdeviceptr address);
  /// A mapping contains the address, and its memory is here and not on its way.
  bool resident(CUdeviceptr address);
  /// Likewise, and nobody but this process's mapping has to do with it.
  bool reusable(CUdeviceptr address);
  /// Waits until the broker has freed all that this process has.
  void settle_frees();
  /// The program has set SYNC_MEMOPS there: so it will be set again after a resume.
  void set_sync_memops(CUdeviceptr address, bool on);
  /// Waits until nothing there is on its way back. False: the time is up.
  bool arrived(CUdeviceptr address, std::size_t size);
  /// A NIC knows these physical addresses now: their allocations stay through a pause.
  void pin(CUdeviceptr address, std::size_t size);

  /// Memory that is being bound to a multicast object: it stays until let_go().
  struct Held {
    std::uint64_t id = 0;
    CUmemGenericAllocationHandle real = 0;
    int device = 0;
    CUdeviceptr address = 0;  // of a range: where the piece begins, in it,
    std::size_t offset = 0;   // in the allocation,
    std::size_t size = 0;     // and how long it is
  };
  CUresult hold(CUmemGenericAllocationHandle handle, Held& held);
  /// The pieces of a range, one for each brokered mapping.
  std::vector<Held> hold(CUdeviceptr address, std::size_t size);
  /// Once for each hold.
  void let_go(const Multicast::Freed& ids);

  /// What a trace says of a handle's allocation; zeros for a handle that is not known.
  struct TraceView {
    std::uint32_t number = 0;
    bool imported = false;
    std::uint32_t refs = 0;
    std::size_t mappings = 0;
  };
  TraceView trace_view(CUmemGenericAllocationHandle handle);
  /// The next number of this process's allocations, in traces.
  std::uint32_t take_number() { return next_number_.fetch_add(1); }
  /// The launcher's number of this rank, for tickets.
  void set_rank(int rank) { rank_ = rank; }

  struct Totals {
    std::uint64_t owned_bytes = 0;
    std::uint64_t imported_bytes = 0;
    std::uint64_t allocations = 0;
    std::uint64_t mappings = 0;
  };
  Totals totals();

  /// What there is of one tag on one device.
  struct Usage {
    std::string tag;
    int device = 0;
    std::uint64_t resident_bytes = 0;  // own
    std::uint64_t away_bytes = 0;      // own, while the group is paused
    std::uint64_t imported_bytes = 0;  // of peers
    std::uint64_t allocations = 0;
  };
  /// By tag and device.
  std::vector<Usage> usage();

  // ---- phases; service thread ----
  /// An answer whose caller has given up: what it holds is given back.
  void unclaimed(const amem_v1_Reply& reply);
  /// Where a copy can reach an allocation's bytes, and from which device.
  struct Site {
    CUdeviceptr address = 0;
    int device = 0;
  };
  /// Maps it at an address of its own when the program has it mapped nowhere; drop_scratch() undoes
  /// that.
  Result<Site> site(std::uint64_t id);
  /// For messages: "allocation 7 (2097152 bytes, device 0), tag 'nccl'".
  std::string name(std::uint64_t id);
  /// Likewise for what the driver refuses: drop_leftovers() has another try at it.
  void drop_scratch();

  /// Unmaps and releases what has one of the tags, all of it when there are none; what is pinned
  /// stays. `bytes`: what went. What the driver refuses to unbind, unmap or release is a leftover:
  /// memory that this process still holds, though the allocation has left and its bytes are the
  /// broker's. REQUIRES: the gate is shut and nobody inside.
  Status leave(const std::set<std::string>& tags, std::uint64_t& bytes);
  /// Likewise these allocations.
  Status leave(const std::set<std::uint64_t>& ids, std::uint64_t& bytes);
  /// Likewise what has come back since the last arrived(): the resume has failed.
  Status undo(std::uint64_t& bytes);
  /// Tries leftovers again. The first that the driver still refuses; OK: there are none.
  Status drop_leftovers();
  /// The resume has ended: what came back is the program's again.
  void arrived();
  /// The process is ending: nobody waits for memory that is on its way back any more.
  /// Without the lock, which a phase holds over driver calls.
  void end() { ending_.store(true, std::memory_order_relaxed); }
  /// The program has it still.
  bool holds(std::uint64_t id);
  /// Bytes of allocations that are not on their devices.
  std::uint64_t bytes_away();
  /// Imports and maps one allocation wherever it was mapped; access follows with finish_return().
  /// One that the program has freed meanwhile is passed over. What is left of its old memory goes
  /// first: other ranks have the new one.
  Status come_back(std::uint64_t id, const Fd& fd);
  /// Access to what has come back since the last call, one driver call for neighbours.
  Status finish_return(std::uint64_t& bytes);
  /// What leave(), undo(), come_back() and finish_return() have spent since the last call.
  Timings take_timings() { return std::exchange(timings_, {}); }

 private:
  struct Scratch {
    CUdeviceptr address;
    std::size_t size;
  };

  CUresult redeem(CUmemGenericAllocationHandle* handle, const Ticket& ticket);
  CUresult adopt(CUmemGenericAllocationHandle* handle, Allocation allocation, const Fd& fd);
  /// The driver's handle of what the broker sent.
  CUresult import_descriptor(CUmemGenericAllocationHandle* real, const Fd& fd) const;
  CUresult ensure_real(Allocation& a);
  void restore_sync_memops(const Mapping& mapping);
  void drop_real(Allocation& a);
  CUresult drop_mapping(Mapping& mapping);
  bool is_stale(const Allocation& a);
  Status drop_leftovers_of(Allocation& a);
  Status drop_all_leftovers();
  void drop_stale_scratch();
  void settle(Allocation& a);
  void tell_free(std::uint64_t id);
  void give_back(const amem_v1_Reply& reply, unsigned mine);
  Status take_away(const std::function<bool(const Allocation&)>& chosen, std::uint64_t& bytes);
  void forget_arrivals();
  bool wait_arrival(std::unique_lock<std::mutex>& lock, const std::function<bool()>& arriving);
  std::optional<std::vector<Mapping*>> settled(std::unique_lock<std::mutex>& lock,
                                               CUdeviceptr address, std::size_t size);
  Ticket ticket_for(const Allocation& a) const {
    return {a.id, 0, a.size, a.token, rank_, a.number};
  }
  std::string describe(const Allocation& a) const;

  const Driver& driver_;
  Devices& devices_;
  Session& session_;
  Multicast& multicast_;
  std::mutex mutex_;                  // guards table_, redeeming_ and unreleased_
  std::condition_variable arrivals_;  // some have ended
  Table table_;
  std::atomic<std::uint32_t> next_number_{1};
  std::map<std::uint64_t, unsigned> redeeming_;  // calls under way, by allocation
  /// Handles that the driver has refused to release.
  std::vector<CUmemGenericAllocationHandle> unreleased_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> frees_under_way_{false};
  int rank_ = -1;
  std::vector<Scratch> scratch_;        // service thread
  std::vector<Scratch> stale_scratch_;  // service thread; no longer used, but not unmapped yet
  std::vector<Mapping*> returned_;      // service thread: mapped, access still to be set
  std::uint64_t returned_bytes_ = 0;    // service thread
  Timings timings_;                     // service thread
};

}  // namespace amem::shim
