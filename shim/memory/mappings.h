// Mappings: where the program has brokered memory mapped, kept true to what the driver would have
// done with memory of its own. Any thread; results are what the driver would return.
#pragma once

#include <optional>
#include <vector>

#include "common/driver.h"
#include "shim/memory/brokered_memory.h"
#include "shim/memory/multicast.h"
#include "shim/session/session.h"

namespace amem::shim {

/// For set_access().
CUmemAccessDesc device_access(int device, CUmemAccess_flags flags);

class Mappings {
 public:
  Mappings(const Driver& driver, Session& session, BrokeredMemory& brokered)
      : driver_(driver), session_(session), brokered_(brokered) {}

  CUresult map(CUdeviceptr address, std::size_t size, std::size_t offset,
               CUmemGenericAllocationHandle handle, unsigned long long flags);
  /// Maps whole allocations side by side. If one cannot be mapped, none of them is.
  CUresult map(CUdeviceptr address, const std::vector<CUmemGenericAllocationHandle>& handles);
  // Nothing: the range is not brokered, ask the driver.
  std::optional<CUresult> unmap(CUdeviceptr address, std::size_t size);
  std::optional<CUresult> set_access(CUdeviceptr address, std::size_t size,
                                     const CUmemAccessDesc* desc, std::size_t count);
  /// What cuMemGetAccess says of brokered memory, whether it is here or paused.
  std::optional<unsigned long long> access(CUdeviceptr address, const CUmemLocation& location);
  std::optional<CUresult> address_range(CUdeviceptr* base, std::size_t* size, CUdeviceptr address);
  bool brokered(CUdeviceptr address, std::size_t size);

  /// A mapping whose memory is paused: the driver knows nothing of it now.
  struct Absent {
    CUdeviceptr address = 0;
    std::uint64_t size = 0;
    int device = 0;
    bool gpu_direct_rdma = false;
    bool sync_memops = false;
    unsigned long long handle_types = 0;
  };
  std::optional<Absent> absent(CUdeviceptr address);
  /// What the driver would say of the memory as the program made it (CU_POINTER_ATTRIBUTE_ALLOWED_
  /// HANDLE_TYPES). To the driver it is imported memory, which has none. Nothing: not brokered.
  std::optional<unsigned long long> handle_types(CUdeviceptr address);
  /// The parts of a range whose memory is paused, in order. kNotFound: some of it is here.
  /// kInvalidArgument: some of it is not brokered.
  struct AbsentRange {
    std::uint64_t id = 0;
    std::uint64_t offset = 0;  // in the allocation
    std::uint64_t size = 0;
  };
  Result<std::vector<AbsentRange>> paused(CUdeviceptr address, std::uint64_t size);
  /// Of the allocation that is mapped there, the broker's.
  std::optional<std::uint64_t> id_at(CUdeviceptr address);
  /// The memory there is on its way back.
  bool arriving(CUdeviceptr address);
  /// A mapping contains the address, and its memory is here and not on its way.
  bool resident(CUdeviceptr address);
  /// All of the range is here, and nobody but this process's mappings has to do with it.
  bool reusable(CUdeviceptr address, std::size_t size);
  /// Where the mappings of a range begin, in order.
  std::vector<CUdeviceptr> starts(CUdeviceptr address, std::size_t size);
  /// Waits until nothing there is on its way back. False: the time is up.
  bool arrived(CUdeviceptr address, std::size_t size);

  /// The program has set SYNC_MEMOPS there: so it will be set again after a resume.
  void set_sync_memops(CUdeviceptr address, bool on);

  /// Memory that is being bound to a multicast object: it stays until release().
  struct Bound {
    std::uint64_t id = 0;
    CUmemGenericAllocationHandle real = 0;
    int device = 0;
    CUdeviceptr address = 0;  // of a range: where it begins, in it,
    std::size_t offset = 0;   // in the allocation,
    std::size_t size = 0;     // and how long it is
    bool own = false;         // this process has made it
  };
  CUresult add_bindings(CUmemGenericAllocationHandle handle, Bound& bound);
  /// The mappings of a range: one entry for each brokered mapping.
  std::vector<Bound> add_bindings(CUdeviceptr address, std::size_t size);
  /// Once for each of add_bindings().
  void release(const Multicast::Freed& ids);

 private:
  std::size_t size_of(CUmemGenericAllocationHandle handle);

  const Driver& driver_;
  Session& session_;
  BrokeredMemory& brokered_;
};

}  // namespace amem::shim
