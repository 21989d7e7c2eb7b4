// Relay: what a node passes on between a leader and nodes to which the leader has no call itself.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "amem/v1/fleet.pb.h"
#include "daemon/base/event_loop.h"
#include "daemon/fleet/node_link.h"

namespace amem {

class Relay : public std::enable_shared_from_this<Relay> {
 public:
  /// `more`: another follows at once.
  using Report = std::function<void(v1::FleetReport report, bool more)>;

  /// `report`: to the leader. `idle`: nobody is left to pass on to; called once, from begin() where
  /// there never was. Everything passed in outlives this object, or its end().
  Relay(NodeLinks& links, EventLoop& loop, Report report, std::function<void()> idle)
      : links_(links), loop_(loop), report_(std::move(report)), idle_(std::move(idle)) {}

  /// Once, first. `begin` is what this node has been given.
  void begin(const v1::FleetBegin& begin);
  void pass(v1::FleetCommand command);
  /// The leader is lost to this node, so all of them lose it. Nothing is reported any more.
  void end();

 private:
  void over(std::uint32_t node, const Status& why);

  NodeLinks& links_;
  EventLoop& loop_;
  Report report_;
  std::function<void()> idle_;
  std::string name_;                                       // this node's, as the leader says it
  std::map<std::uint32_t, std::unique_ptr<NodeLink>> to_;  // by number
};

}  // namespace amem
