// Fleet: operations over several nodes that this node leads, and those that it takes part in.
//
// For the loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "amem/v1/fleet.pb.h"
#include "daemon/base/event_loop.h"
#include "daemon/broker/broker.h"
#include "daemon/fleet/conductor.h"
#include "daemon/fleet/known_transactions.h"
#include "daemon/fleet/node_link.h"
#include "daemon/fleet/participant.h"
#include "daemon/fleet/relay.h"

namespace amem {

/// Of what brokers say to each other; others are refused.
inline constexpr std::uint32_t kFleetProtocol = 3;

class Fleet {
 public:
  /// Everything passed in outlives this object. `deadlines`: of this node's phases. What the broker
  /// has taken up of another is known here.
  Fleet(Broker& broker, EventLoop& loop, NodeLinks& links, const Deadlines& deadlines);
  ~Fleet();

  /// Leads it. What is refused is told to the observer at once, and nothing has changed.
  /// `begin`: the task and the nodes' addresses. This object fills in the rest.
  void lead(const Caller& caller, v1::FleetBegin begin, const Operations::Observer& observer);
  /// This node's participant of an operation that another leads, or this one. `report` gets why it
  /// is refused, too. REQUIRES: the caller operates.
  std::shared_ptr<Participant> take(const Caller& caller, const v1::FleetBegin& begin,
                                    const FleetTransaction& transaction,
                                    Participant::Report report);
  /// To pass on what its leader says to other nodes, as the begin asks for.
  std::shared_ptr<Relay> relay(Relay::Report report, std::function<void()> idle);
  /// Its end would call off what has not been decided.
  bool leads() const { return !led_.empty(); }
  /// Asked by another node that has lost its leader. As KnownTransactions::standing().
  v1::FleetStanding standing(const std::string& transaction);
  /// No leader and no participant does anything any more.
  void shut();

 private:
  struct Led;
  void open(const std::shared_ptr<Led>& led, std::size_t branch, v1::FleetBegin begin);
  void heard(const std::shared_ptr<Led>& led, std::size_t branch, v1::FleetReports reports);
  void over(const std::shared_ptr<Led>& led, std::size_t branch, const Status& why);
  void carry_out(const std::shared_ptr<Led>& led);
  void end(const std::shared_ptr<Led>& led);

  EventLoop& loop_;
  NodeLinks& links_;
  const Deadlines deadlines_;
  const std::unique_ptr<LocalNode> local_node_;
  std::string instance_;
  std::string name_;
  std::map<std::string, std::shared_ptr<Led>> led_;  // by transaction
  KnownTransactions transactions_;
};

}  // namespace amem
