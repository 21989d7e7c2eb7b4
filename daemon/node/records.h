// Records: the tables' rows in the record (proto/amem/v1/record.proto). Each of these writes what
// the object says now; the row ends with the object. kResourceExhausted: the record is full, and
// the row says what it said before. Whoever can still refuse what the row is of does so.
//
// For the loop's thread.
#pragma once

#include <cstdint>

#include "amem/v1/record.pb.h"
#include "common/status.h"
#include "daemon/base/ids.h"
#include "daemon/memory/allocations.h"
#include "daemon/record/record.h"

namespace amem {

struct GroupEntry;
struct Rank;

class Records {
 public:
  /// The record outlives this object.
  explicit Records(Record& record) : record_(record) {}

  Record& record() { return record_; }
  const Record& record() const { return record_; }

  /// Writes what it is, and what a restart must know of an operation under way. `waves`: only what
  /// is marked so leaves.
  Status write(GroupEntry& group, bool waves = false, RowReservation* space = nullptr);
  Status write(Rank& rank);
  Status write(Allocation& allocation);
  /// Writes what a pause takes of it. `leaves`: in a pause in waves, its ranks are told to let go
  /// of it.
  Status write_saved(Allocation& allocation, bool leaves = false, RowReservation* space = nullptr);
  Status write_limbo(Rank& rank);
  /// Writes the extents of a rank that may have gone. `limbo` says which process it is or was.
  Status write_limbo(Row& row, RankId rank, const Extents& extents, const Owner& owner,
                     v1::record::Limbo limbo);
  /// Returns the most bytes that the release of a pause writes of these.
  std::uint64_t bytes_of_release(const GroupEntry& group) const;
  std::uint64_t bytes_of_release(const Allocation& allocation) const;

  // Ids that are about to be told are never used again, restart or not.
  Status used_allocation(AllocationId id);
  Status used_rank(RankId id);
  Status used_group(GroupId id);
  Status used_segment(std::uint64_t id);
  /// Begins a record. `chunk`: bytes of a chunk of the pool, in a record without rows. One with
  /// rows says it itself.
  void begin(std::uint64_t chunk);
  void go_on(const v1::record::Life& life);
  const v1::record::Life& life() const { return life_; }

 private:
  Status write_life();

  Record& record_;
  v1::record::Life life_;
  Row life_row_;
  // Made again and again, for their memory.
  v1::record::Allocation allocation_;
  v1::record::Saved saved_;
};

/// As rows name them.
void to_record(const Extents& extents,
               google::protobuf::RepeatedPtrField<v1::record::Extent>& rows);
Extents from_record(const google::protobuf::RepeatedPtrField<v1::record::Extent>& rows);
Owner from_record(const v1::record::Owner& owner);
void to_record(const Owner& owner, v1::record::Owner& row);

}  // namespace amem
