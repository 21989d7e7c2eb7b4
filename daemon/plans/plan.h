// Plans: who copies and maps what in a pause or resume, worked out from the allocation table.
//
// Pure functions over the table; the result points into it and is good until the table changes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/memory/allocations.h"
#include "daemon/phases/task.h"
#include "daemon/plans/creation.h"
#include "daemon/transactions/headroom.h"

namespace amem {

/// A range of an allocation and where its bytes are in the pool; kZeroSegment: nowhere, clear it.
struct CopyRange {
  AllocationId id = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint32_t segment = 0;
  std::uint64_t segment_offset = 0;
  Form form = Form::kDense;    // of a load: how it is stored, never kAuto
  std::uint64_t stored = 0;    // of what is or must be sparse: bytes, or space, in the pool
  std::uint64_t checksum = 0;  // of a load: of the range's bytes; 0: not known
  bool hash = false;           // of a save: take hashes
  std::uint64_t since = 0;     // of a save: the attempt whose bytes are there; 0: none
  bool in_place = false;       // of a load: the memory has them already

  friend bool operator==(const CopyRange&, const CopyRange&) = default;
};

struct RankPlan {
  std::vector<const Allocation*> maps;
  std::vector<CopyRange> copies;
};

using Plan = std::map<RankId, RankPlan>;

/// Checks that the task makes sense for the group's memory. kNotFound: it has no memory of a tag
/// that is named (but NCCL's and the heap's may be excepted), or none but of those that are
/// excepted; the text has the tags that there are. kInvalidArgument: a resume drops nothing and has
/// no guests, a pause neither NCCL's bytes nor what it is not about, and the heap's only by force.
/// kFailedPrecondition: an earlier pause has saved bytes that would be dropped.
Status check_tags(const Allocations& table, GroupId group, const Task& task);
/// Whether a pause may drop bytes of this tag of the group. kInvalidArgument: never those of NCCL;
/// not without `force` those of the heap: it has all that no region names, so nobody has said of
/// any of it that the job can lose it. A tag of a region has the name that the program gave to it.
Status may_drop(const Allocations& table, GroupId group, const std::string& tag, bool force);

/// What a policy of a tag says: whether pauses drop its bytes, and whether also the heap's.
enum class TagDrop : std::uint8_t { kNo, kYes, kForced };
constexpr TagDrop tag_drop(bool discard, bool force) {
  if (!discard) return TagDrop::kNo;
  return force ? TagDrop::kForced : TagDrop::kYes;
}

/// The allocations of a group whose bytes a pause must keep: on a device, free to leave it, and
/// `needs_save` is true.
std::vector<Allocation*> to_save(Allocations& table, GroupId group, const Selection& what,
                                 const Allocations::Filter& needs_save);

/// Save: every allocation of the group that is on a device, has extents and is `chosen`, copied by
/// its keeper in the form that `form` says; sparsely where its place is shorter.
using FormOf = std::function<Form(const Allocation&)>;
Plan plan_save(
    const Allocations& table, GroupId group, const FormOf& form,
    const Allocations::Filter& chosen = [](const Allocation&) { return true; });

/// Bytes of each device that a resume of these groups has still to take.
BytesByDevice needs(const Allocations& table, const std::vector<GroupId>& groups,
                    const Selection& what);

/// Returns what a resume restores: everything that the ranks have let go of, by `order` of the
/// tags, then what is copied before what is cleared, then oldest first. Memory of other tags comes
/// last.
std::vector<Creation::Item> to_bring_back(const Allocations& table, GroupId group,
                                          const Selection& what,
                                          const std::vector<std::string>& order = {});

/// Map and load: each keeper maps what it keeps of `slice`, which is on its device again, and
/// fills it. Memory that stayed on the device because some rank pinned it is mapped and not filled;
/// a rank never released what it pinned itself. `in_place`: what has its saved bytes still.
Plan plan_load(const std::vector<const Allocation*>& slice,
               const std::set<AllocationId>& in_place = {});

/// Who loads what.
using Loaders = std::unordered_map<AllocationId, RankId>;

/// Peers: each sharer maps what its loader has loaded. Only ranks with something to map.
Plan plan_peers(const Allocations& table, GroupId group, const Selection& what,
                const Loaders& loaders);

/// Whether `rank` was to load something that another rank holds as well.
bool loads_for_others(const Allocations& table, GroupId group, const Loaders& loaders, RankId rank);

}  // namespace amem
