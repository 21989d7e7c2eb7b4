// Spares: GPU memory that no allocation has. What one group has let go of waits here for the next
// group of its owner, or for that group itself. It is taken in place of memory that the driver
// would have to make.
//
// A spare has whatever bytes the group before has left in it. So only a resume takes spares: it
// writes all memory that it brings back before a rank may touch it, unless the memory still has
// the bytes of the same allocation.
//
// Does no I/O, but that closing the last reference to a descriptor frees the memory. Not
// synchronised: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "common/fd.h"
#include "common/protocol.h"
#include "daemon/base/clock.h"
#include "daemon/memory/allocations.h"
#include "daemon/owners/account.h"

namespace amem {

/// Memory of one kind can take each other's place: the driver maps a handle as a whole only, and
/// nobody is given the memory of another owner.
struct MemoryKind {
  const Account* owner = nullptr;
  DeviceUuid device = {};
  std::uint64_t size = 0;  // bytes
  bool gpu_direct_rdma = false;

  friend auto operator<=>(const MemoryKind&, const MemoryKind&) = default;
};
MemoryKind kind_of(const Allocation& a);
using KindCounts = std::map<MemoryKind, std::size_t>;

struct Spare {
  SharedFd fd;  // the charge goes with it; null: there is no spare
  AllocationId from = 0;
  std::uint64_t attempt = 0;  // of the pause that `from` left in (Saved::attempt)

  /// The spare comes from this allocation, and the allocation has not been resumed since. So the
  /// memory still has the bytes that the pause has saved.
  bool has_bytes_of(const Allocation& a) const {
    return from == a.id && attempt != 0 && attempt == a.saved.attempt && !a.saved.empty();
  }
};

class Spares {
 public:
  /// `until`: the caller may close it from then on.
  void put(const MemoryKind& kind, Spare spare, Time until = kNever);
  /// Prefers the spare of the allocation `of`. Without a spare of this kind: fd is null.
  Spare take(const MemoryKind& kind, AllocationId of);
  /// Takes out all that is more than these.
  std::map<MemoryKind, std::vector<SharedFd>> take_but(const KindCounts& these);

  /// Takes out all for which `goes`, which is called once for each.
  std::vector<SharedFd> take_if(const std::function<bool(const MemoryKind&, Time until)>& goes);

  bool empty() const { return by_kind_.empty(); }
  /// The earliest `until`; nullopt: there is no spare.
  std::optional<Time> first_until() const;
  std::size_t count(const MemoryKind& kind) const;
  /// Of all on a device.
  std::uint64_t bytes(const DeviceUuid& device) const;

 private:
  struct Waiting {
    Spare spare;
    Time until;
  };
  std::map<MemoryKind, std::map<AllocationId, Waiting>> by_kind_;  // none of them empty
};

}  // namespace amem
