// PeerAccessTable: the pairs of contexts in which the driver lets one use the other's memory.
//
// Pure bookkeeping, no driver calls, no lock: Heap owns one and guards it.
#pragma once

#include <cuda.h>

#include <set>
#include <vector>

namespace amem::shim {

/// Memory of `context` may be read and written from `accessor`.
struct PeerAccess {
  CUcontext accessor = nullptr;
  CUcontext context = nullptr;
  int accessor_device = 0;
  int device = 0;
};

class PeerAccessTable {
 public:
  void add(const PeerAccess& peer) { peers_.push_back(peer); }
  void remove(const PeerAccess& peer);
  /// Removes what had to do with a context that is gone, and answers it.
  std::vector<PeerAccess> context_gone(CUcontext context);

  bool reaches(int accessor_device, int device) const;
  /// The devices that reach a device's memory, itself among them.
  std::set<int> devices_reaching(int device) const;
  /// The contexts of others that do.
  std::set<CUcontext> accessors(int device) const;

 private:
  std::vector<PeerAccess> peers_;
};

}  // namespace amem::shim
