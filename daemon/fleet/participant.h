// Participant: this node's share of an operation over several nodes.
//
// It begins as any operation on the node's groups does, and reports to its leader, which may be
// lost. What has not asked then whether it may go on is given up. What has asked, and has not
// heard, asks the other nodes how far they are (daemon/fleet/inquiry.h says what follows from their
// answers), repeatedly, at most until the deadline of its phase.
//
// What it says to others holds:
// - "Has gone on": it has, and its next amemd goes on, too.
// - "Has not asked": it never will. A node promises this with its answer. Whoever asks has lost
//   the leader, and nothing more is decided without the leader. A node records that it asks before
//   it tells the leader.
// - "Has given up": nobody was told to go on, and nobody will be. So it says that only if its
//   leader has said so, or before it has asked, or by what others say. A node that fails on its own
//   after it has asked may have been told to go on meanwhile, and says nothing; it is withdrawn, so
//   that the leader does not decide on it any more.
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
#include "daemon/fleet/inquiry.h"
#include "daemon/fleet/node_link.h"
#include "daemon/operations/operations.h"
#include "daemon/owners/caller.h"
#include "daemon/transactions/transaction.h"

namespace amem {

/// What an operation over several nodes must do on each of them.
struct FleetTransaction {
  Task task = Operation::kPause;
  bool swap = false;
  std::vector<std::string> groups;  // of a swap those that go out
  std::vector<std::string> in;      // of a swap
  Duration timeout{};

  /// The last with which it goes on.
  Side last() const { return swap || task.op == Operation::kResume ? Side::kIn : Side::kOut; }
};

/// What a participant has its own node do: the part of Broker and Operations that it needs.
class LocalNode {
 public:
  virtual ~LocalNode() = default;
  /// Its number, for the calls below; 0: refused.
  virtual std::uint64_t begin(const Caller& caller, const FleetTransaction& transaction,
                              const Operations::Observer& observer,
                              std::shared_ptr<RemoteNodes> remote_nodes) = 0;
  virtual void tell(std::uint64_t number, const std::string& group, const Event& event) = 0;
  virtual bool may_go_on(std::uint64_t number, Side side) = 0;
  virtual void give_up(std::uint64_t number, const Status& why) = 0;
};

class Participant final : public RemoteNodes,
                          public OperationObserver,
                          public std::enable_shared_from_this<Participant> {
 public:
  /// `more`: another follows at once.
  using Report = std::function<void(v1::FleetReport report, bool more)>;
  /// Runs the job later, once, on the loop.
  using Later = std::function<void(Duration, std::function<void()>)>;

  /// Everything passed in outlives this object.
  Participant(LocalNode& local_node, NodeLinks& links, Later later, v1::FleetBegin begin,
              Report report);

  /// Once, first. `transaction` is what the begin says.
  void begin(const Caller& caller, const FleetTransaction& transaction);
  void handle(const v1::FleetCommand& command);
  void leader_lost();
  /// Asked by another node that has lost the leader.
  v1::FleetStanding standing_for_others();
  bool ended() const { return ended_; }

  // ---- RemoteNodes ----
  const std::string& transaction() const override { return begin_.transaction(); }
  void quiesces(const std::string& group, const std::vector<RankId>& ranks) override;
  void reported(const std::string& group, RankId rank,
                const std::optional<CutReport>& report) override;
  void asks(Side side) override;
  void withdraws(Side side) override;
  // ---- OperationObserver ----
  void progress(const v1::Progress& progress) override;
  void finished(const Status& status) override;

 private:
  friend class ModelPeek;  // of the tests: says in what state it is
  struct Told {
    std::string phase;
    Time at{};
  };

  void go_on(Side side);
  void give_up(const Status& why);
  Status leader_is_lost(const std::string& and_what) const;
  /// The side for which it has asked and has not heard.
  std::optional<Side> waits() const;
  void ask_the_others();
  void heard(const std::shared_ptr<Inquiry>& inquiry, std::size_t node,
             const Result<v1::FleetStanding>& standing);
  void decide(const std::shared_ptr<Inquiry>& inquiry);
  std::string name_of(std::size_t node) const { return begin_.nodes(static_cast<int>(node)); }
  /// With the progress that has waited.
  void tell(v1::FleetReport report);
  /// `more`: a report follows at once.
  void tell_progress(bool more);

  LocalNode& local_node_;
  NodeLinks& links_;
  const Later later_;
  const v1::FleetBegin begin_;
  Report report_;             // null once the leader is lost
  std::uint64_t number_ = 0;  // of the transaction here
  Side last_ = Side::kOut;
  std::map<std::string, Told> told_;              // by group: the last progress
  std::map<std::string, v1::Progress> progress_;  // by group: what waits to be told
  PerSide<bool> asked_;
  PerSide<bool> went_on_;
  bool withdrawn_ = false;  // the last side that it has asked about
  bool promised_ = false;   // to ask about nothing more
  bool given_up_ = false;
  bool ended_ = false;
  std::optional<std::size_t> leader_;     // which of the nodes
  std::shared_ptr<Inquiry> inquiry_;      // null: the leader is there, or there is no question
  std::unique_ptr<Questions> questions_;  // of the inquiry
};

}  // namespace amem
