// Part: this node's share of an operation over several nodes.
//
// It begins as any operation on the node's groups does, and reports to its leader, which may be
// lost: what has not asked then whether it may go on is given up. What has asked, and has not
// heard, asks the other nodes how far they are: if one of them was told to go on, so does this one;
// if one has given up, or has not asked and so never will, or all of them wait like this one, it
// gives up. While the leader lives, or some node still has it, or more than one node cannot be
// asked, it waits and asks again, at most until the deadline of its phase.
//
// For the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "amem/v1/fleet.pb.h"
#include "daemon/base/event_loop.h"
#include "daemon/broker/broker.h"
#include "daemon/fleet/node_link.h"
#include "daemon/operations/abroad.h"

namespace amem {

/// What an operation over several nodes is to do on each of them.
struct FleetOrder {
  Task task = Operation::kPause;
  bool swap = false;
  std::vector<std::string> groups;  // of a swap those that go out
  std::vector<std::string> in;      // of a swap
  Duration timeout{};
};

class Part final : public Abroad,
                   public OperationObserver,
                   public std::enable_shared_from_this<Part> {
 public:
  /// `more`: another follows at once.
  using Report = std::function<void(v1::FleetReport report, bool more)>;

  /// Everything passed in outlives this object.
  Part(Broker& broker, EventLoop& loop, NodeLinks& links, v1::FleetBegin begin, Report report);

  /// Once, first. `order` is what the begin says.
  void begin(const Caller& caller, const FleetOrder& order);
  void handle(const v1::FleetCommand& command);
  void leader_lost();
  /// Asked by another node that has lost the leader.
  v1::FleetStanding standing_for_others();
  bool ended() const { return ended_; }

  // ---- Abroad ----
  void quiesces(const std::string& group, const std::vector<RankId>& ranks) override;
  void reported(const std::string& group, RankId rank,
                const std::optional<CutReport>& report) override;
  void asks(Stage stage) override;
  // ---- OperationObserver ----
  void progress(const v1::Progress& progress) override;
  void finished(const Status& status) override;

 private:
  struct Round;  // of questions to the other nodes
  struct Told {
    std::string phase;
    Time at{};
  };

  void go_on(Stage stage);
  void give_up(const Status& why);
  /// The stage for which it has asked and has not heard.
  std::optional<Stage> waits() const;
  void ask_the_others();
  void heard(Round& round, const std::string& address, const Result<v1::FleetStanding>& standing);
  /// With the progress that has waited.
  void tell(v1::FleetReport report);
  /// `more`: a report follows at once.
  void tell_progress(bool more);

  Broker& broker_;
  EventLoop& loop_;
  NodeLinks& links_;
  const v1::FleetBegin begin_;
  Report report_;             // null once the leader is lost
  std::uint64_t number_ = 0;  // of the order here
  bool begun_ = false;
  std::map<std::string, Told> told_;              // by group: the last progress
  std::map<std::string, v1::Progress> progress_;  // by group: what waits to be told
  PerStage<bool> asked_;
  PerStage<bool> went_on_;
  bool given_up_ = false;
  bool ended_ = false;
};

}  // namespace amem
