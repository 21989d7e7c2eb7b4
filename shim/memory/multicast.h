// Multicast: this process's multicast objects, and which brokered memory is bound to them.
//
// The objects are the driver's and stay through a pause, with their mappings. Memory that goes is
// unbound first, and bound again in the same place when it is back. For that an object has to be
// found when the program has released its handle and kept a mapping, so both are counted, as the
// driver counts them.
//
// Any thread. leave() and come_back() are called by Memory, under its lock; no other function may
// be. The lock is held over driver calls of those two, which do not wait: the object's team is
// complete by then.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "common/driver.h"

namespace amem::shim {

class Multicast {
 public:
  explicit Multicast(const Driver& driver) : driver_(driver) {}

  /// Brokered memory that a binding leaves without: the broker's ids, one for each binding.
  using Freed = std::vector<std::uint64_t>;

  // ---- handles and mappings of objects; a handle that is not tracked changes nothing ----
  /// The program has a handle of an object. Of one that it imported it is told late, with the
  /// first call that shows what it is; so nothing changes when it is tracked already.
  void track(CUmemGenericAllocationHandle object);
  bool tracked(CUmemGenericAllocationHandle object);
  bool mapped(CUdeviceptr address, std::size_t size);
  void map(CUmemGenericAllocationHandle object, CUdeviceptr address, std::size_t size);
  void retain(CUmemGenericAllocationHandle object, CUdeviceptr address);
  Freed release(CUmemGenericAllocationHandle object);
  Freed unmap(CUdeviceptr address, std::size_t size);

  // ---- bindings, after the driver has made or ended them ----
  struct Binding {
    std::uint64_t id = 0;  // allocation, the broker's
    int device = 0;
    std::size_t at = 0;    // in the object
    std::size_t from = 0;  // in the allocation
    std::size_t size = 0;
    bool bound = true;  // false: the memory is paused
    bool within(int of, std::size_t begin, std::size_t length) const {
      return device == of && at < begin + length && begin < at + size;
    }
  };
  void bind(CUmemGenericAllocationHandle object, const Binding& binding);
  Freed unbind(CUmemGenericAllocationHandle object, int device, std::size_t at, std::size_t size);
  /// All that is bound in the range is paused, so the driver knows no binding there.
  bool paused(CUmemGenericAllocationHandle object, int device, std::size_t at, std::size_t size);

  // ---- phases ----
  /// Unbinds an allocation that is about to go. What the driver refuses stays bound, for the next
  /// call.
  CUresult leave(std::uint64_t id);
  /// Binds it again where it was; `real`: the driver's new handle. REQUIRES: leave() has succeeded.
  CUresult come_back(std::uint64_t id, CUmemGenericAllocationHandle real);

 private:
  struct Object {
    std::uint32_t refs = 0;                       // handles the program holds
    std::map<CUdeviceptr, std::size_t> mappings;  // and how long they are
    std::vector<Binding> bindings;
  };
  using Objects = std::map<CUmemGenericAllocationHandle, Object>;

  Freed forget_unused(Objects::iterator it);
  template <class Use>
  CUresult with_handle(Objects::value_type& entry, Use use);

  const Driver& driver_;
  std::atomic<bool> any_{false};  // objects_ has never been empty since: most processes have none
  std::mutex mutex_;              // guards objects_
  Objects objects_;
};

}  // namespace amem::shim
