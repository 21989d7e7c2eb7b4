// Allocations: the table of all physical GPU memory that the broker has made.
//
// An allocation is its sharers' group's. Ranks of other groups may open it as guests: they map it
// and count for nothing else. When its last sharer has let go of it before its last guest, it stays
// in the table as nobody's, of kNoGroup.
//
// An Allocation owns its descriptor (the one thing that keeps the memory alive on our side) and
// names the pool extents that hold its bytes while its group is paused; the extents are the
// ExtentAllocator's. Ids grow and are never used twice. Does no I/O, but that closing the last
// reference to a descriptor frees the memory.
//
// Not synchronised: the broker's loop owns it. References stay valid until the allocation goes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/fd.h"
#include "common/form.h"
#include "common/protocol.h"
#include "common/status.h"
#include "daemon/base/ids.h"
#include "daemon/memory/extents.h"
#include "daemon/owners/account.h"
#include "daemon/record/record.h"

namespace amem {

/// The tag of NCCL's own buffers, which are never dropped: it is not proven that they may be.
inline constexpr std::string_view kNcclTag = "nccl";
/// The tag of memory that ranks allocate in no region.
inline constexpr std::string_view kHeapTag = "heap";

/// What the region in which memory was allocated says about its bytes.
enum class RegionPolicy : std::uint8_t { kNone, kKeep, kDiscard };

/// How a rank has stored the piece of an allocation that one extent is for.
struct Stored {
  std::uint64_t length = 0;  // of the allocation
  std::uint64_t bytes = 0;   // of the pool
  Form form = Form::kDense;
  std::uint64_t checksum = 0;   // of the piece; 0: none was taken
  bool hashed = false;          // the rank has the hashes of these bytes
  std::uint64_t unchanged = 0;  // bytes that were in the pool already, and so were not copied
};

/// How a device came to remember where an allocation is.
enum class PinReason : std::uint8_t { kUnknown, kNic, kGdrCopy, kDmaBuf, kP2pTokens, kStorage };
/// For people: "NIC".
std::string_view to_string(PinReason reason);

/// A sharer that gave an allocation to a device that remembers its address.
struct Pinner {
  RankId rank = 0;
  PinReason reason = PinReason::kUnknown;
  friend bool operator==(const Pinner&, const Pinner&) = default;
};

/// The group of memory that belongs to none: its guests are all that is left.
inline constexpr GroupId kNoGroup = 0;

/// A rank of another group that has opened an allocation.
struct Guest {
  RankId rank = 0;
  GroupId group = 0;    // the rank's
  bool paused = false;  // that group is paused: the rank has let go of its mapping

  friend bool operator==(const Guest&, const Guest&) = default;
};

/// What an allocation is, from its beginning to its end.
struct AllocationIdentity {
  AllocationId id = 0;
  GroupId group = 0;
  Token token{};
  std::uint64_t size = 0;
  DeviceUuid device;
  bool gpu_direct_rdma = false;
  RankId maker = 0;  // the first of the sharers, if it has made the memory; 0: amemd has
  std::string tag;
  RegionPolicy region = RegionPolicy::kNone;
};

/// Whether it is on its device.
struct Residence {
  SharedFd fd;               // null: not on the device
  HolderEntry holder_entry;  // of the same memory
  bool paused = false;       // the ranks have let go of it, except for those that pinned it
  bool stayed = false;       // paused, or about to be, but on the device with its bytes in place
  /// Nobody can have it mapped but its sharers and guests: this amemd has made it, and who had it
  /// and has it no longer has said so. False: also where a process ended without a word.
  bool sharers_known = false;

  bool resident() const { return fd != nullptr; }
};

/// Where its bytes are while it is paused.
struct Saved {
  Extents extents;             // empty: nothing was kept
  std::vector<Stored> pieces;  // how, of each extent; empty: byte for byte, and all of them fit
  RankId saver = 0;            // the rank that writes them; of no pause: 0
  std::uint64_t attempt = 0;   // the pause that has taken them: its Epoch::attempt
  bool hash = false;           // the saver takes hashes
  std::uint64_t since = 0;     // they have the bytes of this attempt, until it saves; 0: of none
  bool sent = false;           // the saver was told to save: since then they may have any bytes
  Row row;                     // of what a pause takes, or has taken

  bool empty() const { return extents.empty(); }
};

struct Allocation : AllocationIdentity, Residence {
  std::vector<RankId> sharers;  // by first hold; not empty in a group
  std::vector<Pinner> pinners;  // each once; of sharers only
  std::vector<Guest> guests;    // by first opening; while there is one it cannot leave its device
  Saved saved;
  Charge charge;  // for its entry in the table
  Row row;        // of what does not change; the last here, so the first to be erased

  RankId keeper() const { return sharers.front(); }
  /// A resume has something to bring back.
  bool left() const { return !resident() || stayed; }
  bool pinned() const { return !pinners.empty(); }
  bool opened() const { return !guests.empty(); }
  /// A pause has something to take, unless guests keep it. What stayed paused stays until it has
  /// been resumed, though nobody pins it any more: its keeper may have let go of it.
  bool may_leave() const { return resident() && !paused && !stayed && !pinned(); }
  /// A pause takes it.
  bool can_leave() const { return may_leave() && !opened(); }
  /// Notes how the rank has stored the piece that begins at `offset`. `left`: the whole chunks of
  /// its extent that are not in use; they are the allocation's no more. Returns false if there is
  /// no such piece, if it was told before, or if it cannot be in its extent.
  struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    Form form = Form::kDense;
    std::uint64_t checksum = 0;
    bool hashed = false;
    std::uint64_t unchanged = 0;
  };
  bool store(const Piece& piece, std::uint64_t chunk, Extents& left);
  /// The pause that has saved what the extents have now, all of it as it is, with its hashes in the
  /// saver. 0: none, or it is not sure what they have.
  std::uint64_t hashed_by() const;
  /// Every piece that is longer than its extent is known to be sparse.
  bool fits() const;
  /// Returns how the bytes lie in each extent.
  std::vector<Stored> pieces() const;
  /// Returns whether it has left its device and its bytes are nowhere. A resume zeroes it.
  bool dropped() const { return paused && !resident() && saved.empty(); }
  /// Bytes of the pool that hold its bytes.
  std::uint64_t saved_bytes() const;
  bool shared_by(RankId rank) const;
  bool pinned_by(RankId rank) const;
  bool opened_by(RankId rank) const;
};

struct Usage {
  std::uint64_t count = 0;
  std::uint64_t allocated = 0;  // bytes, all of it
  std::uint64_t resident = 0;   // of these, on a device now
  std::uint64_t saved = 0;      // what their bytes take in the pool
  std::uint64_t pinned = 0;     // of these, stays on the device
};

/// Bytes of a group's memory with one tag on one device.
struct TagSums {
  std::uint64_t all = 0;
  std::uint64_t resident = 0;   // Allocation::resident()
  std::uint64_t may_leave = 0;  // Allocation::may_leave()
  std::uint64_t can_leave = 0;  // Allocation::can_leave()
  friend bool operator==(const TagSums&, const TagSums&) = default;
};
using SumsByTag = std::map<std::string, TagSums, std::less<>>;
using SumsByDevice = std::map<DeviceUuid, SumsByTag>;

class Allocations {
 public:
  using Filter = std::function<bool(const Allocation&)>;

  /// Takes an allocation that its creator holds, and gives it its id; or one from before a restart,
  /// which has it. REQUIRES: somebody has it.
  Allocation& add(Allocation allocation);
  /// The ids before this one have been used.
  void continue_at(AllocationId next) { next_id_ = std::max(next_id_, next); }

  Allocation* find(AllocationId id);

  /// `rank` of `group` presents a ticket: makes it a sharer, once. kNotFound: no such allocation
  /// (any more). kPermissionDenied: another group's, or the wrong token. kFailedPrecondition: it is
  /// not on its device, or without its bytes: `loaded` says that memory that returns has them.
  /// kResourceExhausted: its owner is charged for each rank that has it beside the first, and may
  /// have no more.
  Result<Allocation*> redeem(AllocationId id, const Token& token, GroupId group, RankId rank,
                             bool loaded = false);

  /// A rank of another group presents a ticket: makes it a guest, once. As redeem(); kNotFound also
  /// when only guests are left, and this is none of them.
  /// REQUIRES: the rank's group may open memory of the allocation's.
  Result<Allocation*> open(AllocationId id, const Token& token, const Guest& guest,
                           bool loaded = false);
  /// Returns what the rank holds.
  std::vector<const Allocation*> shared_by(RankId rank) const;
  /// Returns what the rank has opened of other groups.
  std::vector<Allocation*> opened_by(RankId rank);
  std::vector<const Allocation*> opened_by(RankId rank) const;
  /// As a guest the rank has let go of all its mappings, or has them again.
  void set_paused(RankId rank, bool paused);

  /// `rank` holds it no longer, or has closed it as a guest. The allocation itself, when nobody has
  /// it now: it has left the table, the caller frees its extents, and its end closes its
  /// descriptor. kNotFound: `rank` has no allocation of that id.
  Result<std::optional<Allocation>> free(AllocationId id, RankId rank);

  /// `rank` has gone: takes it from all sharers and guests; what nobody has now, as from free().
  std::vector<Allocation> drop_rank(RankId rank);

  /// kNotFound: `rank` does not hold an allocation of that id.
  Status pin(AllocationId id, const Pinner& pinner);
  /// kNotFound: it is not pinned so.
  Status unpin(AllocationId id, const Pinner& pinner);

  /// The oldest of these groups' whose ids are not below `first`; at most so many.
  std::vector<const Allocation*> some(const std::function<bool(GroupId)>& of, AllocationId first,
                                      std::size_t most) const;
  /// Oldest first, as are all that follow.
  std::vector<const Allocation*> select(const Filter& filter) const;
  std::vector<Allocation*> of_group(GroupId group);
  std::vector<const Allocation*> of_group(GroupId group) const;
  std::vector<Allocation*> of_group(GroupId group, const Filter& filter);
  /// Returns whether this is true for an allocation of the group.
  bool any(GroupId group, const Filter& filter) const;

  /// Returns the sums of what the group has now; a device and a tag without memory are missing.
  const SumsByDevice& sums(GroupId group) const;
  /// `how` changes where the allocation is (Residence).
  template <class How>
  void move(Allocation& a, How how) {
    SumsByDevice& sums = groups_.at(a.group).sums;
    enter(sums, a, -1);
    how();
    enter(sums, a, 1);
  }

  Usage usage(const Filter& filter) const;
  Usage usage(GroupId group, const Filter& filter) const;
  std::size_t size() const { return by_id_.size(); }
  /// Whether the group's memory has as many different tags as it may have, and this is none of
  /// them.
  bool too_many_tags(GroupId group, const std::string& tag) const;
  /// Reports and metrics have a line for each.
  static constexpr std::size_t kMostTags = 1024;

 private:
  /// What a group has. An operation walks over it a dozen times, so the walk is over a vector.
  struct Table {
    std::map<AllocationId, Allocation> by_id;
    mutable std::vector<Allocation*> in_order;  // of by_id, or empty: to be made anew
    std::map<std::string, std::size_t> tags;    // how much of by_id has each
    SumsByDevice sums;                          // of by_id
  };

  /// What a rank has, with what its owner was charged for that.
  using Has = std::map<AllocationId, Charge>;
  using Index = std::map<RankId, Has>;  // none of them empty

  static const std::vector<Allocation*>& walk(const Table& table);
  /// `times`: 1 or -1.
  static void enter(SumsByDevice& sums, const Allocation& a, int times);
  static void forget(Index& index, RankId rank, AllocationId id);
  void detach(Allocation& allocation, RankId rank);
  std::optional<Allocation> drop_or_disown(Table& table,
                                           std::map<AllocationId, Allocation>::iterator it);

  std::map<GroupId, Table> groups_;  // none of them empty
  std::unordered_map<AllocationId, Allocation*> by_id_;
  Index shared_;
  Index opened_;  // by guests
  AllocationId next_id_ = 1;
};

/// Returns the error for a ticket of an allocation that does not exist, or that is none of the
/// asker's business.
Status freed(AllocationId id);

}  // namespace amem
