// Segments: physical memory at addresses of its own, for what hands it out in blocks.
//
// A segment is one allocation of the broker's, or several of equal size side by side (part_of());
// the program sees no difference. Any thread, inside the gate.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/driver.h"
#include "shim/blocks/segment_cache.h"
#include "shim/memory/memory.h"
#include "shim/session/session.h"

namespace amem::shim {

class Segments {
 public:
  Segments(const Driver& driver, Memory& memory, Session& session)
      : driver_(driver), memory_(memory), session_(session) {}

  using Kind = SegmentCache::Kind;
  struct Made {
    Address address = 0;
    std::uint64_t size = 0;
    bool rdma = false;
    std::vector<CUmemGenericAllocationHandle> handles;
  };
  /// Asks the broker for the memory: calls `create`, once or more, and answers its last result.
  using Ask = std::function<CUresult(const std::function<CUresult()>& create)>;
  /// Maps it, by map() under the caller's lock, and enters it in the caller's books.
  using Enter = std::function<CUresult(const Made& made)>;

  /// `whole`: it is one allocation.
  CUresult add(const Kind& kind, bool whole, const Ask& ask, const Enter& enter,
               Address* address) const;
  /// Maps it for these devices. If that fails nothing is mapped.
  CUresult map(const Made& made, const std::vector<CUmemAccessDesc>& access) const;
  /// Frees segments that are in nobody's books. Memory that is on its way back is waited for.
  void drop(const std::vector<AddressRange>& ranges) const;

 private:
  std::uint64_t part_of(const Kind& kind, bool whole) const;
  bool rdma_capable(int device) const;

  const Driver& driver_;
  Memory& memory_;
  Session& session_;
};

}  // namespace amem::shim
