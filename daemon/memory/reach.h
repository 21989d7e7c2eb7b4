// Reach: the segments of its owner's part of the host pool that each rank can copy to and from.
//
// To reach a segment costs its rank about 20 ms of the driver's time per GiB and device memory for
// page tables, so a rank is given as much of the pool as it may have to save, while it allocates,
// and no pause waits for that. Ranks get different segments while there are enough. Pure
// bookkeeping: the caller tells a rank what it reaches.
//
// Not synchronised: the broker's loop owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "daemon/memory/allocations.h"
#include "daemon/memory/extents.h"

namespace amem {

class Reach {
 public:
  /// The pool's next segment; `node`: NUMA node, -1: none in particular. Of size 0: its number is
  /// nobody's.
  void add_segment(std::uint64_t size, int node);
  /// Nobody gets this one from now on. Ranks that reach it may lack it.
  void withdraw(std::uint32_t segment);
  /// It is there again, where it was withdrawn or left, and of that size.
  void restore(std::uint32_t segment, std::uint64_t size, int node);
  /// No rank reaches what was withdrawn any more.
  void left(std::uint32_t segment, std::uint64_t size);

  /// The rank pauses together with the others of its group.
  void join(RankId rank, GroupId group);
  /// The rank has so many bytes more to save, of a device that is best served from `node`.
  void add_need(RankId rank, int node, std::uint64_t bytes);
  /// So many fewer. More than it has: none are left.
  void release(RankId rank, int node, std::uint64_t bytes);
  /// Adds a segment that was nobody's, with add_segment() or restore(): of this node, or, unless
  /// `only`, of another. Returns its number; nothing: there is none to be had.
  using Draw = std::function<std::optional<std::uint32_t>(int node, bool only)>;
  /// The segments that the rank is to reach from now on besides those that it does, so that all it
  /// has to save has space; of the right node first, and of these those that fewest ranks reach,
  /// which is what `draw` adds. Of a pool that is smaller than what the group has to save, no more
  /// than the rank's share. `most`: bytes that the pool can come to have.
  std::vector<std::uint32_t> extend(
      RankId rank, std::uint64_t most, const Draw& draw = [](int, bool) { return std::nullopt; });
  /// The rank is about to copy to or from this one. Returns whether the caller must send it the
  /// segment first. It does not have to reach kZeroSegment, which stands for no segment.
  bool add(RankId rank, std::uint32_t segment);
  /// The rank may lack a segment that it was sent: it is sent again before its next copies.
  void doubt(RankId rank);
  void forget(RankId rank);

  /// Bytes that all ranks have to save.
  std::uint64_t to_save() const;
  bool reaches(RankId rank, std::uint32_t segment) const;
  /// All segments, in the order in which the rank's bytes are best saved to them.
  SegmentOrder order(RankId rank, int node) const;

 private:
  struct Segment {
    std::uint64_t size = 0;
    int node = -1;
    std::uint32_t ranks = 0;  // that reach it
  };
  struct Need {
    std::uint64_t bytes = 0;
    std::uint64_t given = 0;  // in segments
  };
  enum class State : std::uint8_t { kOut, kDoubtful, kTold };  // reached, except for kOut
  struct Reached {
    State state = State::kOut;
    std::optional<int> given_for;  // the need of this node
  };
  struct RankReach {
    GroupId group = 0;
    std::vector<Reached> segments;
    std::map<int, Need> needs;  // by node
  };

  std::optional<std::uint32_t> best(RankReach& reach, int node) const;
  /// Returns how many of the bytes that a rank of the group has to save the pool can have space
  /// for.
  std::uint64_t share(GroupId group, std::uint64_t bytes, std::uint64_t most) const;

  std::vector<Segment> segments_;
  std::map<GroupId, std::uint64_t> to_save_;  // bytes of all its ranks
  std::map<RankId, RankReach> ranks_;
};

}  // namespace amem
