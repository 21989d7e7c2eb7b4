// Allocations: the table of every piece of physical GPU memory that the broker has made.
//
// An Allocation owns its descriptor (the one thing that keeps the memory alive on our side) and
// names the pool extents that hold its bytes while its group is paused; the extents are the
// ExtentAllocator's. Ids grow and are never used twice. Does no I/O, but that closing the last
// reference to a descriptor frees the memory.
//
// Not synchronised: the broker's loop owns it. References stay valid until the allocation goes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/fd.h"
#include "common/protocol.h"
#include "common/status.h"
#include "daemon/base/ids.h"
#include "daemon/memory/extents.h"

namespace amem {

/// A descriptor that a queue of outgoing packets may hold beside the table.
using SharedFd = std::shared_ptr<const Fd>;

/// The tag of NCCL's own buffers, which are never dropped: it is not proven that they may be.
inline constexpr std::string_view kNcclTag = "nccl";

/// What the region in which memory was allocated says about its bytes.
enum class RegionPolicy : std::uint8_t { kNone, kKeep, kDiscard };

/// How kept bytes are to be stored, or are.
enum class SaveForm : std::uint8_t { kAuto, kDense, kSparse };
/// "auto", "dense", "sparse".
std::string_view to_string(SaveForm form);

/// How a rank has stored the part of an allocation that one extent is for.
struct Stored {
  std::uint64_t length = 0;    // of the allocation
  std::uint64_t bytes = 0;     // of the pool
  bool sparse = false;         // an index and the blocks that are not zero; else byte for byte
  std::uint64_t checksum = 0;  // of the part; 0: none was taken
};

struct Allocation {
  AllocationId id = 0;
  GroupId group = 0;
  Token token{};
  std::uint64_t size = 0;
  DeviceUuid device;
  bool gpu_direct_rdma = false;
  std::string tag;
  RegionPolicy region = RegionPolicy::kNone;
  std::vector<RankId> holders;  // by first hold; never empty in the table
  std::vector<RankId> pinners;  // the holders that gave it to a device that remembers its address
  Extents saved;                // where its bytes are while paused; empty: nothing was kept
  RankId saver = 0;             // who is to write them; of no pause: 0
  std::vector<Stored> stored;   // how, of each extent; empty: byte for byte
  SharedFd fd;                  // null: not on the device
  bool away = false;            // the ranks have let go of it, but for those that pinned it
  bool stayed = false;          // away, but on the device with its bytes in place: it is pinned

  RankId keeper() const { return holders.front(); }
  bool resident() const { return fd != nullptr; }
  /// A resume has something to bring back.
  bool left() const { return !resident() || stayed; }
  bool pinned() const { return !pinners.empty(); }
  /// A pause has something to take. What stayed away stays until it has been resumed, though
  /// nobody pins it any more: its keeper may have let go of it.
  bool can_leave() const { return resident() && !away && !pinned(); }
  /// How the rank has stored the part that begins at `offset`. `left`: what of its extent, in whole
  /// chunks, is not in use; it is the allocation's no more. False: there is no such part, it was
  /// told before, or it cannot be in its extent.
  struct Part {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    bool sparse = false;
    std::uint64_t checksum = 0;
  };
  bool store(const Part& part, std::uint64_t chunk, Extents& left);
  /// Of each extent, how the bytes lie in it.
  std::vector<Stored> parts() const;
  /// It has left its device and its bytes are nowhere: it comes back zeroed.
  bool dropped() const { return away && !resident() && saved.empty(); }
  /// Bytes of the pool that hold its bytes.
  std::uint64_t saved_bytes() const;
  bool held_by(RankId rank) const;
  bool pinned_by(RankId rank) const;
};

struct Usage {
  std::uint64_t count = 0;
  std::uint64_t allocated = 0;  // bytes, all of it
  std::uint64_t resident = 0;   // of these, on a device now
  std::uint64_t saved = 0;      // what their bytes take in the pool
  std::uint64_t pinned = 0;     // of these, cannot leave the device
};

class Allocations {
 public:
  using Filter = std::function<bool(const Allocation&)>;

  /// Takes an allocation that its creator holds, and gives it its id.
  /// REQUIRES: allocation.holders has one entry.
  Allocation& add(Allocation allocation);

  Allocation* find(AllocationId id);

  /// `rank` of `group` presents a ticket: makes it a holder, once. kNotFound: no such allocation
  /// (any more). kPermissionDenied: another group's, or the wrong token. kFailedPrecondition: it is
  /// not on its device, or without its bytes: `loaded` says that what comes back has them.
  Result<Allocation*> redeem(AllocationId id, const Token& token, GroupId group, RankId rank,
                             bool loaded = false);

  /// `rank` holds it no longer. The allocation itself, when nobody does now: it has left the table,
  /// the caller frees its extents, and its end closes its descriptor.
  /// kNotFound: `rank` does not hold an allocation of that id.
  Result<std::optional<Allocation>> free(AllocationId id, RankId rank);

  /// `rank` has gone: takes it from all holders; those that nobody holds now, as from free().
  std::vector<Allocation> drop_rank(RankId rank);

  /// kNotFound: `rank` does not hold an allocation of that id.
  Status pin(AllocationId id, RankId rank);

  /// Oldest first.
  std::vector<const Allocation*> select(const Filter& filter) const;
  std::vector<Allocation*> of_group(GroupId group);
  std::vector<const Allocation*> of_group(GroupId group) const;
  std::vector<Allocation*> of_group(GroupId group, const Filter& filter);
  /// Whether the group has an allocation of which this is true.
  bool any(GroupId group, const Filter& filter) const;

  Usage usage(const Filter& filter) const;
  Usage usage(GroupId group, const Filter& filter) const;
  std::size_t size() const { return by_id_.size(); }

 private:
  using Table = std::map<AllocationId, Allocation>;

  std::map<GroupId, Table> groups_;  // none of them empty
  std::unordered_map<AllocationId, Allocation*> by_id_;
  AllocationId next_id_ = 1;
};

}  // namespace amem
