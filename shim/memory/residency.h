// Residency: the physical memory behind brokered allocations, which leaves with a pause and returns
// with a resume. Service thread.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/driver.h"
#include "common/fd.h"
#include "shim/base/timings.h"
#include "shim/driver/local_devices.h"
#include "shim/memory/brokered_memory.h"
#include "shim/memory/multicast.h"

namespace amem::shim {

class Residency {
 public:
  Residency(const Driver& driver, LocalDevices& devices, Multicast& multicast,
            BrokeredMemory& brokered)
      : driver_(driver), devices_(devices), multicast_(multicast), brokered_(brokered) {}

  /// Where a copy can reach an allocation's bytes, and from which device.
  struct Site {
    CUdeviceptr address = 0;
    int device = 0;
  };
  /// Maps it at an address of its own when the program has it mapped nowhere;
  /// drop_temporary_mappings() undoes that.
  Result<Site> site(std::uint64_t id);
  /// Leaves what the driver refuses to drop_leftovers().
  void drop_temporary_mappings();

  /// Unmaps these already, if the program has mapped them and nothing else keeps them in place. The
  /// driver's handles keep their memory, so that leave() takes it, or map_again() brings it back.
  /// What the driver refuses stays mapped. REQUIRES: as of leave(); nothing uses them any more.
  void unmap_ahead(std::span<const std::uint64_t> ids);
  /// Maps the same memory again that unmap_ahead() has unmapped and no leave() has taken. What the
  /// driver refuses to map is not lost, and a next call tries it again.
  Status map_again();

  /// Unmaps and releases what has one of the tags (`except`: what has none of them), all of it when
  /// there are none; what is pinned stays, and with tags what is another group's. `bytes`: what
  /// went. What the driver refuses to unbind, unmap or release is a leftover: memory that this
  /// process still holds, though the allocation has left and its bytes are the broker's. REQUIRES:
  /// the gate is shut and nobody inside.
  Status leave(const std::set<std::string>& tags, bool except, std::uint64_t& bytes);
  /// The same for these allocations.
  Status leave(const std::set<std::uint64_t>& ids, std::uint64_t& bytes);
  /// The same for what has returned since the last arrived(), and what has been made: the resume
  /// has failed.
  Status undo(std::uint64_t& bytes);
  /// Tries leftovers again. The first that the driver still refuses; OK: there are none.
  Status drop_leftovers();

  /// Makes the memory of one anew that this process had made, for come_back() to map: a descriptor
  /// for the broker. An empty one: the program has freed it meanwhile.
  Result<Fd> make(std::uint64_t id);
  /// Imports and maps one allocation wherever it was mapped, or maps what make() has made; access
  /// follows with finish_return().
  /// One that the program has freed meanwhile is passed over. What is left of its old memory goes
  /// first: other ranks have the new one.
  Status come_back(std::uint64_t id, const Fd& fd);
  /// The same with new memory of this process's own instead of the broker's.
  Status make_again(std::uint64_t id);
  /// Gives access to what has returned since the last call, one driver call for neighbours.
  Status finish_return(std::uint64_t& bytes);
  /// Drops what has been made and is not mapped.
  void drop_made();
  /// The resume has ended: what has returned is the program's again.
  void arrived();

  /// Returns what this has spent on driver calls since the last call.
  Timings take_timings() { return std::exchange(timings_, {}); }

 private:
  Result<Site> borrow(BrokeredAllocation& a, int device);
  template <class Chosen>
  std::vector<BrokeredAllocation*> all_that(const Chosen& chosen);
  Status take(std::vector<BrokeredAllocation*> going, std::uint64_t& bytes);
  using GetMemory =
      std::function<CUresult(BrokeredAllocation& a, CUmemGenericAllocationHandle* real)>;
  Status arrive(std::uint64_t id, const char* getting, const GetMemory& get);
  /// Neighbours in one call. What the driver refuses is stale from then on.
  void unmap(std::vector<Mapping*> mapped);
  /// Gives the access that the program has given, in the same way.
  Status grant(std::vector<Mapping*> mapped);
  CUresult drop_mapping(Mapping& mapping);
  CUresult unbind(const BrokeredAllocation& a);
  Status drop_leftovers_of(BrokeredAllocation& a);
  Status drop_all_leftovers();
  void drop_stale_mappings();
  void restore_sync_memops(const Mapping& mapping);

  const Driver& driver_;
  LocalDevices& devices_;
  Multicast& multicast_;
  BrokeredMemory& brokered_;
  std::vector<AddressRange> temporary_mappings_;
  std::vector<AddressRange> stale_mappings_;  // no longer used, but not unmapped yet
  std::set<std::uint64_t> leftovers_;         // of these the driver has refused something
  std::vector<std::uint64_t> unmapped_;       // by unmap_ahead(), since the last map_again()
  std::vector<Mapping*> returned_;            // mapped, access still to be set
  std::uint64_t returned_bytes_ = 0;
  Timings timings_;
};

}  // namespace amem::shim
