// Conductor: leads one operation on groups that several nodes have.
//
// Each node takes part by the phases that it always takes, with a barrier
// (daemon/transactions/transaction.h). The conductor takes one cut of all ranks, and lets nobody
// release before all nodes have saved, nobody open before all have loaded and let go of what goes
// out. Until it has told somebody to release, all others give up when one node fails or is lost.
// For those that come in this holds until somebody is told to open. The node that leads, if it
// takes part, is told to go on last: whoever has been told can then tell those who lose their
// leader. All are told which node that is.
//
// A node that says nothing for longer than any of its phases lasts is lost, even if it answers
// pings.
//
// Pure: reports go in, commands come out; time comes in. Not synchronised; the loop's.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "amem/v1/fleet.pb.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/fleet/fleet_cut.h"
#include "daemon/phases/task.h"

namespace amem {

class Conductor {
 public:
  struct Params {
    bool goes_out = false;  // something does, or comes in
    bool comes_in = false;
    Duration stall{};        // of the cut
    Duration to_join{};      // for a node to answer
    Duration timeout{};      // of the operation
    std::string instance{};  // of the amemd that leads
  };
  struct NodeCommand {
    std::size_t node;
    v1::FleetCommand command;  // nothing: break the way to the node; it is lost
  };

  /// `nodes`: what they are called until they have told their names; at least one, all different.
  Conductor(std::vector<std::string> nodes, Params params, Time now);

  // ---- what happens ----
  void told(std::size_t node, const v1::FleetReport& report, Time now);
  /// There is no way to the node any more, and it has not ended.
  void lost(std::size_t node, const Status& why, Time now);
  void give_up(const Status& why);
  void tick(Time now);

  // ---- how it stands ----
  std::vector<NodeCommand> take_commands();
  Time wakeup() const;
  /// Every node has ended, or is lost.
  bool ended() const;
  /// Names each node that has not done its share. REQUIRES: ended.
  Status result() const;
  const std::string& name(std::size_t node) const { return nodes_[node].name; }

 private:
  friend class ModelPeek;  // of the tests: says in what state it is
  struct Barrier {
    bool is = false;         // part of the operation
    bool committed = false;  // somebody has been told to go on
    std::set<std::size_t> asks;
    std::set<std::size_t> told;  // to go on
    std::set<std::size_t> gone;  // have answered
  };
  struct Node {
    std::string name;
    std::string instance{};
    bool joined = false;
    Duration silence{};  // it says something at least so often
    Time heard{};        // when it has, the last time
    bool over = false;   // ended, or lost
    Status status{};
  };

  void joined(std::size_t node, const v1::FleetJoined& joined);
  void withdraws(std::size_t node, Side side);
  void lose_silent_nodes(Time now);
  void ended(std::size_t node, const Status& status, Time now);
  void look_at_cuts(Time now);
  void go_on_if_all_may(Side side);
  /// The one that leads, once somebody else knows.
  void let_leader_go_on(Side side);
  void tell_to_go_on(std::size_t node, Side side);
  void send(std::size_t node, v1::FleetCommand command);
  void send_give_up(std::size_t node);
  std::optional<std::size_t> leader() const;
  template <class Is>
  bool all_under_way(Is is) const;

  const Params params_;
  const Time join_by_;
  std::vector<Node> nodes_;
  PerSide<Barrier> barriers_;
  std::map<std::string, FleetCut> cuts_;
  Time look_for_silence_ = kNever;
  std::optional<Time> look_at_cuts_;  // once for all that is told together: a look costs by ranks
  Status given_up_;
  std::vector<std::size_t> failed_;  // in their order
  std::vector<NodeCommand> commands_;
};

}  // namespace amem
