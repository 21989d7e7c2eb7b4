// Insight: copies the machines of daemon/phases and daemon/fleet, puts them back and says what
// state they are in. An explorer comes back to a state many times, and must know it again; the
// machines' own interfaces have no use for either.
#pragma once

#include <memory>
#include <optional>
#include <set>

#include "daemon/fleet/conductor.h"
#include "daemon/fleet/participant.h"
#include "daemon/phases/cut.h"
#include "daemon/phases/group.h"
#include "daemon/transactions/transaction.h"
#include "tests/model/explorer/digest.h"

namespace amem {

class Insight {
 public:
  /// What a Group does next depends on this alone; not on its note, its times and what its last
  /// operations took.
  struct GroupCopy {
    GroupState state;
    GroupState rest;
    bool deep;
    bool by_operator;
    Epoch epoch;
    Members members;
    Requests requests;
    std::optional<Course> course;
    std::set<RankId> expected;
    std::optional<Interrupted> interrupted;
    Time patience;
  };
  /// REQUIRES, as does put_back(): all its actions have been taken.
  static std::shared_ptr<const GroupCopy> copy(const Group& group);
  /// REQUIRES: the copy is of this object, because a Course refers to its group.
  static void put_back(const GroupCopy& copy, Group& group);

  /// With times as they are from `now` on.
  static void add(const Group& group, Time now, model::Digest& digest);
  static void add(const Cut& cut, Time now, model::Digest& digest);
  static void add(const Transaction& transaction, model::Digest& digest);
  static void add(const Conductor& conductor, model::Digest& digest);
  static void add(const Participant& participant, model::Digest& digest);

 private:
  static void add(const Course& course, Time now, model::Digest& digest);
  static void add(const Task& task, model::Digest& digest);
  static std::uint64_t until(Time time, Time now);
};

}  // namespace amem
