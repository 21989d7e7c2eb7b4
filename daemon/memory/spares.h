// Spares: GPU memory that no allocation has. What one group has let go of waits here for the next
// group of its owner, or for that group itself. It is taken in place of memory that the driver
// would have to make.
//
// A spare has whatever bytes the group before has left in it. So only a resume takes spares: it
// writes all of what it brings back before a rank may touch it, but for what has its own bytes
// still.
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

  /// This is the allocation that it has come from, and it was not resumed since. So the memory has
  /// the bytes that the pause has saved, and nobody has written to it.
  bool has_bytes_of(const Allocation& a) const {
    return from == a.id && attempt != 0 && attempt == a.saved.attempt && !a.saved.empty();
  }
};

class Spares {
 public:
  /// `until`: when nobody need take it any more.
  void put(const MemoryKind& kind, Spare spare, Time until = kNever);
  /// That of the allocation `of`, if it is there.
  Spare take(const MemoryKind& kind, AllocationId of);
  /// Takes out all that is more than these.
  std::map<MemoryKind, std::vector<SharedFd>> take_but(const KindCounts& these);

  /// Takes out all for which `goes`.
  std::vector<SharedFd> take_if(const std::function<bool(const MemoryKind&, Time until)>& goes);

  bool empty() const { return by_kind_.empty(); }
  /// When the first need not wait any more.
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
