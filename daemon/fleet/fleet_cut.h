// FleetCut: the consistent cut (daemon/phases/cut.h) of a group whose ranks are on several nodes.
//
// It begins once every node has said which ranks it has. Reports that come before are kept. Pure;
// not synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "amem/v1/fleet.pb.h"
#include "daemon/base/clock.h"
#include "daemon/phases/cut.h"

namespace amem {

class FleetCut {
 public:
  struct Permit {
    std::size_t node;
    v1::FleetPermit permit;  // without the group
  };

  FleetCut(std::size_t nodes, Duration stall) : stall_(stall) {
    for (std::size_t node = 0; node < nodes; ++node) awaited_.insert(node);
  }

  void quiesces(std::size_t node, const v1::FleetQuiesces& ranks, Time now);
  void reported(std::size_t node, const v1::FleetRank& report, Time now);
  /// The node has gone, and its ranks with it.
  void forget(std::size_t node, Time now);

  /// All nodes have reported their ranks, and all ranks are quiet.
  bool taken() const { return cut_ && cut_->taken(); }
  std::vector<Permit> decide(Time now);
  Time next_decision() const { return cut_ ? cut_->next_decision() : kNever; }

 private:
  using Rank = std::pair<std::size_t, std::uint32_t>;  // the node's number, and the rank's there

  RankId id(const Rank& rank);
  void begin_if_all_have_told(Time now);

  Duration stall_;
  std::set<std::size_t> awaited_;  // nodes that have not told which ranks they have
  RankId next_id_ = 1;
  std::map<Rank, RankId> ids_;
  std::map<RankId, Rank> ranks_;
  std::map<Rank, CutReport> early_;
  std::optional<Cut> cut_;
};

}  // namespace amem
