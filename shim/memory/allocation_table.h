// AllocationTable: what this rank's program believes about its brokered memory: virtual handles,
// mappings, access.
//
// Pure bookkeeping, no driver calls, no lock: Memory owns one and guards it. Callers (NCCL,
// PyTorch) hold virtual handles; a mapping keeps its allocation alive as in the real driver,
// whether or not a handle is left. An allocation that is not resident (the group is paused) keeps
// every entry, so that it can be mapped again just so.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "amem/v1/session.pb.h"
#include "common/protocol.h"

namespace amem::shim {

using Address = std::uint64_t;

struct AddressRange {
  Address address = 0;
  std::uint64_t size = 0;  // bytes
};

/// The entry of a map of ranges, by where each begins, that has this address; the end: none has.
template <class Ranges>
auto range_at(Ranges& ranges, Address address) {
  const auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) return ranges.end();
  const auto range = std::prev(next);
  return address < range->first + range->second.size ? range : ranges.end();
}

/// A grant of cuMemSetAccess. `type`, `id` and `flags` are CUmemAccessDesc's numbers.
struct Access {
  int type = 0;
  int id = 0;
  int flags = 0;
  friend bool operator==(const Access&, const Access&) = default;
};

/// What has made a device remember where an allocation is.
struct PinnedBy {
  amem_v1_PinReason reason = amem_v1_PinReason_PIN_REASON_UNSPECIFIED;
  std::uint64_t registration = 0;  // of this process, by number
  friend auto operator<=>(const PinnedBy&, const PinnedBy&) = default;
};

/// Where the memory of an allocation is. A pause and its resume go through these in order. A pause
/// that is called off goes back from kUnmapped to kHere, and a resume that fails from kArriving to
/// kAway.
enum class Where : std::uint8_t {
  kHere,      // on its device, and the program's
  kUnmapped,  // a pause has unmapped it ahead of its Release
  kAway,      // not on its device
  kArriving,  // a resume that has not ended has brought it back
};

/// What is true of memory that is there.
struct WhereRule {
  Where where;
  bool usable;     // by the program; else it is paused
  bool mapped;     // as the program wants it
  bool on_device;  // it takes memory there
  bool saved;      // its bytes, if they are kept, are the broker's
};
// clang-format off
inline constexpr std::array kWhere = {
    //                          usable  mapped  on_device  saved
    WhereRule{Where::kHere,     true,   true,   true,      false},
    WhereRule{Where::kUnmapped, false,  false,  true,      false},
    WhereRule{Where::kAway,     false,  false,  false,     true},
    WhereRule{Where::kArriving, false,  true,   true,      true},
};
// clang-format on
constexpr const WhereRule& rule(Where where) { return kWhere[static_cast<std::size_t>(where)]; }
static_assert(std::all_of(kWhere.begin(), kWhere.end(),
                          [](const WhereRule& row) { return rule(row.where).where == row.where; }));

struct BrokeredAllocation {
  std::uint64_t id = 0;      // the broker's
  std::uint32_t number = 0;  // in traces: the how-manieth of this process
  std::uint64_t size = 0;    // bytes
  int device = 0;            // ordinal in this process
  std::string tag;
  bool gpu_direct_rdma = false;
  bool imported = false;   // redeemed, not created here
  bool guest = false;      // another group's; its tag is that group's, too
  bool shared = false;     // a peer may have been given a ticket for it
  bool own = false;        // this process has made the memory itself
  bool by_itself = false;  // while it is away: this process has asked for that
  Token token{};
  std::uint32_t refs = 0;          // handles the program holds
  std::vector<Address> mapped_at;  // where its mappings begin
  std::uint32_t bindings = 0;      // to multicast objects; they keep the memory as mappings do
  std::uint64_t real = 0;          // the driver's handle, 0: released (mappings keep the memory)
  std::uint64_t made = 0;          // as `real`, of new memory for a resume
  std::set<PinnedBy> pins;         // with one, it stays through a pause

  Where where() const { return where_; }
  bool usable() const { return rule(where_).usable; }
  bool mapped() const { return rule(where_).mapped; }
  bool on_device() const { return rule(where_).on_device; }
  bool saved() const { return rule(where_).saved; }
  bool arriving() const { return where_ == Where::kArriving; }

 private:
  friend class AllocationTable;
  Where where_ = Where::kHere;  // AllocationTable::move() counts
};

struct Mapping {
  Address address = 0;
  std::uint64_t size = 0;  // bytes, the whole allocation
  std::uint64_t id = 0;
  std::vector<Access> access;
  std::set<Address> sync_memops;  // where CU_POINTER_ATTRIBUTE_SYNC_MEMOPS was set
  bool stale = false;             // a pause was to unmap it, but the driver has refused
};

class AllocationTable {
 public:
  /// Virtual handles live where no driver's handle does: it hands out heap addresses, which never
  /// have these top bits.
  static constexpr std::uint64_t kHandleTag = 0xa3e3'0000'0000'0000;
  static constexpr std::uint64_t kTagMask = 0xffff'0000'0000'0000;
  static bool is_virtual(std::uint64_t handle) { return (handle & kTagMask) == kHandleTag; }
  static std::uint64_t id_of(std::uint64_t handle) { return handle & ~kTagMask; }
  static std::uint64_t handle_of(std::uint64_t id) { return id | kHandleTag; }

  /// Adds an allocation with one reference, or one more reference to one that is known.
  BrokeredAllocation& add(const BrokeredAllocation& allocation);
  BrokeredAllocation* find(std::uint64_t id);
  /// Its memory is there from now on.
  void move(BrokeredAllocation& allocation, Where where);
  /// Allocations that the program cannot use.
  std::size_t paused() const { return paused_; }
  /// Returns how often a resume has returned one to the program.
  std::uint64_t returns() const { return returns_; }
  /// The allocation of a handle that the program holds; nullptr also once it has released all.
  BrokeredAllocation* of_handle(std::uint64_t handle) {
    BrokeredAllocation* a = find(id_of(handle));
    return a != nullptr && a->refs > 0 ? a : nullptr;
  }

  /// REQUIRES: the allocation is known and the range overlaps no mapping.
  Mapping& add_mapping(std::uint64_t id, Address address);
  /// The mapping that begins here. REQUIRES: there is one.
  Mapping& mapping(Address address) { return mappings_.at(address); }
  /// The mapping that contains this address.
  Mapping* mapping_at(Address address);
  /// Mappings that lie wholly or partly in the range, by address.
  std::vector<Mapping*> overlapping(Address address, std::uint64_t size);
  /// Removes the mapping that begins here. REQUIRES: there is one.
  void remove_mapping(Address address);

  /// Records a grant, replacing an earlier one for the same location. Without any access it records
  /// none.
  static void grant(Mapping& mapping, const Access& access);

  /// Neither handle nor mapping nor binding left: the broker can be told.
  static bool unused(const BrokeredAllocation& a) {
    return a.refs == 0 && a.mapped_at.empty() && a.bindings == 0;
  }
  /// The driver's handle is still needed. Mappings alone do without; of memory that is only bound
  /// it could not be fetched again, and memory that is unmapped would be gone.
  static bool needs_real(const BrokeredAllocation& a) {
    return a.refs > 0 || a.bindings > 0 || (a.where() == Where::kUnmapped && !a.mapped_at.empty());
  }
  void forget(std::uint64_t id);
  /// No allocation. Any thread, without a lock.
  bool empty() const { return empty_.load(std::memory_order_acquire); }

  std::map<Address, Mapping>& mappings() { return mappings_; }
  std::unordered_map<std::uint64_t, BrokeredAllocation>& allocations() { return allocations_; }

  /// Returns what is left of a range without the mappings in it for which `absent` is true.
  template <class Predicate>
  static std::vector<AddressRange> without(Address address, std::uint64_t size,
                                           const std::vector<Mapping*>& touched, Predicate absent) {
    std::vector<AddressRange> parts;
    Address from = address;
    for (const Mapping* m : touched) {
      if (!absent(*m)) continue;
      if (m->address > from) parts.push_back({from, m->address - from});
      from = m->address + m->size;
    }
    if (from < address + size) parts.push_back({from, address + size - from});
    return parts;
  }

  /// Contiguous mappings with equal access are one call to the driver instead of many.
  struct Run {
    Address address = 0;
    std::uint64_t size = 0;
    std::vector<Access> access;
  };
  /// One call holds a lock of the driver's, for which all processes of the node wait: up to 111 ms
  /// to unmap 134 GiB in handles of 1 GiB, and up to 13 ms in parts of this size (H200). So a run
  /// has no more bytes than this, unless a single mapping has.
  static constexpr std::uint64_t kLongestRun = 4ULL << 30U;
  /// Joins neighbours; `with_access` false ignores what is granted. REQUIRES: sorted by address.
  static std::vector<Run> runs(const std::vector<Mapping*>& sorted, bool with_access);

 private:
  std::unordered_map<std::uint64_t, BrokeredAllocation> allocations_;
  std::atomic<bool> empty_{true};
  std::size_t paused_ = 0;
  std::uint64_t returns_ = 0;
  std::map<Address, Mapping> mappings_;  // by address
};

}  // namespace amem::shim
