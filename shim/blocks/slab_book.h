// SlabBook: which slabs there are, where the buffers lie in them, and what holds each buffer.
//
// Pure bookkeeping, no driver calls, no lock: Slabs owns one and guards it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "shim/base/region.h"
#include "shim/blocks/slab_sizes.h"
#include "shim/blocks/small_blocks.h"
#include "shim/memory/allocation_table.h"

namespace amem::shim {

struct Slab {
  Address address = 0;
  std::uint64_t size = 0;
  std::uint64_t id = 0;      // the broker's
  SmallBlocks::Pool pool{};  // device -1: not visible in this process
  bool imported = false;
  bool retired = false;
  bool reused = false;      // a buffer was freed: what is taken may be dirty
  std::size_t buffers = 0;  // of an imported one; SmallBlocks counts our own
  std::vector<Access> access{};
};

struct SlabBuffer {
  Address address = 0;  // 0: it has moved
  std::uint64_t size = 0;
  int device = 0;
  bool rdma = false;
  bool imported = false;
  bool exported = false;           // its space is not used again: peers may still write to it
  std::uint32_t refs = 0;          // handles
  std::uint32_t reservations = 0;  // that were answered with its address
  std::uint32_t mappings = 0;      // of these, mapped
  std::uint64_t own = 0;           // the allocation's handle, once it has moved to one
  Label label;
};

/// A buffer that this process has made, and where it lies.
struct OwnBuffer {
  Address address = 0;
  std::uint64_t size = 0;
  int device = 0;
  std::uint64_t id = 0;      // of the slab, the broker's
  std::uint64_t offset = 0;  // in the slab
};

class SlabBook {
 public:
  // ---- slabs ----
  void add(const Slab& slab);
  /// The slab that contains the address; nullptr: none.
  Slab* slab_at(Address address);
  /// By the broker's id.
  Slab* slab_of(std::uint64_t id);
  /// Nothing more is put into slabs of these ids.
  void retire(const std::vector<std::uint64_t>& ids);
  /// Space for a buffer in one of our own slabs; nothing: add one. `usable`: not every slab is.
  std::optional<Address> take(const SmallBlocks::Pool& pool, std::uint64_t size,
                              const std::function<bool(const Slab&)>& usable);
  /// Takes a buffer's space back. What a peer may have mapped is not used again before the slab has
  /// gone: a kernel of the peer's may be late with its last word to a communicator that has ended
  /// here. Returns the slab if it is empty now, and forgets it.
  std::optional<Slab> give(Address address, bool reusable);
  /// Those of the grants that are more than the slab has got. Access is the whole slab's: what one
  /// buffer may no longer do, the others still do.
  static std::vector<CUmemAccessDesc> fresh(const Slab& slab, const CUmemAccessDesc* grants,
                                            std::size_t count);
  void grant(Address slab, const std::vector<CUmemAccessDesc>& grants);
  /// Returns the gaps of our own slabs where no buffer is, of `least` bytes and more.
  Gaps unused(std::uint64_t least) const;
  SlabSizes& sizes() { return sizes_; }  // of our own slabs

  // ---- buffers, by number ----
  void add(std::uint64_t number, const SlabBuffer& buffer);
  SlabBuffer* buffer(std::uint64_t number);
  /// The buffer that contains the address; 0: none.
  std::uint64_t buffer_at(Address address) const;
  /// The buffer that begins there; 0: none.
  std::uint64_t buffer_from(Address address) const;
  /// Those in our own slabs, by address.
  std::vector<OwnBuffer> own() const;
  /// It lies in no slab any more: it is an allocation of its own now.
  void move(SlabBuffer& buffer, std::uint64_t own);
  /// Forgets and answers a buffer that nothing holds.
  std::optional<SlabBuffer> forget_if_unused(std::uint64_t number);

 private:
  std::map<Address, Slab> slabs_;
  std::unordered_map<std::uint64_t, SlabBuffer> buffers_;
  std::map<Address, std::uint64_t> buffer_addresses_;  // → number
  SmallBlocks space_;
  SlabSizes sizes_;
};

}  // namespace amem::shim
