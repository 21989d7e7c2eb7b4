// RunningCommand: what an operator, a stage or amemd itself has asked for: one transaction, and the
// operations on groups that are its members.
//
// What the members do to each other is decided in daemon/transactions/transaction.h. A command goes
// on to its end whether or not its caller stays.
//
// For the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/node/names.h"
#include "daemon/node/node.h"
#include "daemon/owners/caller.h"
#include "daemon/phases/actions.h"
#include "daemon/phases/task.h"
#include "daemon/transactions/headroom.h"
#include "daemon/transactions/transaction.h"

namespace amem {

class GroupOperation;
class Operations;
struct OperationContext;

/// Is told how an operation goes. Must not block.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  virtual void progress(const v1::Progress& progress) = 0;
  /// Nothing has begun yet. `forget` ends the wait if the caller goes before it has.
  virtual void on_wait(std::function<void()> forget) { static_cast<void>(forget); }
  /// The last call.
  virtual void finished(const Status& status) = 0;
};

/// Who has asked for an operation.
struct Requester {
  // Implicit: mostly it is an operator.
  Requester(std::string who_asks) : who(std::move(who_asks)) {}
  Requester(const Caller& caller) : who(caller.who), sees_all(caller.operates || caller.sees_all) {}
  Requester(std::string who_asks, std::string its_stage, std::string its_why)
      : who(std::move(who_asks)), stage(std::move(its_stage)), why(std::move(its_why)) {}

  std::string who;         // for people; the ranks are told
  std::string stage = {};  // that switches its groups; empty: none
  std::string why = {};    // it does, for people
  bool sees_all = false;   // may be told all owners
  bool by_broker = false;  // nobody has asked for it: deep.after
};

/// The parts of groups that go out, where only this leaves; they do not run on without it.
using Parts = std::map<GroupId, Selection>;
/// Returns what a task of all that go out means for this group.
Task part_of(Task task, GroupId group, const Parts& parts);

/// What a command must do: all of it, or nothing.
struct Order {
  std::vector<NamedGroup> out;  // are paused
  std::vector<NamedGroup> in;   // are resumed
  Task pause = Operation::kPause;
  Task resume = Operation::kResume;
  Parts parts = {};
  Duration timeout{};  // 0: the configured one

  std::vector<NamedGroup> all() const;
};
/// The task of these groups alone.
Order order_of(const Task& task, const std::vector<NamedGroup>& groups, Duration timeout = {});

class RunningCommand : public std::enable_shared_from_this<RunningCommand> {
 public:
  using Observer = std::shared_ptr<OperationObserver>;

  /// `number`: counted since the broker began. `observer` null: nobody watches. `remote_nodes`:
  /// other nodes have a part of it; null: they have none. References outlive this object.
  RunningCommand(Operations& operations, const OperationContext& context, std::uint64_t number,
                 Order order, bool duplex, Observer observer, Requester requester,
                 std::shared_ptr<RemoteNodes> remote_nodes);
  ~RunningCommand();

  void start();

  // ---- what the operations on its members say ----
  void quiesces(std::size_t member, const std::vector<RankId>& ranks);
  void reported(std::size_t member, const action::Reported& report);
  /// `what`: such as Transaction::ready().
  void tell_transaction(std::size_t member, Transaction::Effects (Transaction::*what)(std::size_t));
  /// `progress` is completed by what the command knows.
  void progress(std::size_t member, v1::Progress progress);
  /// The operation has been removed from Operations, and goes after this call.
  void ended(const GroupOperation& operation, const Outcome& outcome);

  // ---- what other nodes say; see Operations ----
  void tell(const std::string& group, const Event& event);
  bool may_go_on(Side side);
  void give_up(const Status& why);

  /// The broker ends: nobody is told any more. Returns who was; null: nobody.
  Observer dismiss() { return std::exchange(observer_, nullptr); }

  // ---- what it is ----
  std::uint64_t number() const { return number_; }
  const Requester& requester() const { return requester_; }
  bool swaps() const { return transaction_.swaps(); }
  /// Groups of other owners take part, or groups that have ended.
  bool of_several(const Account& owner) const;
  bool has(GroupId group) const;
  bool watched() const { return observer_ != nullptr; }
  /// Returns what its operations share.
  Exchange& exchange() { return exchange_; }
  /// Returns whether an operator has asked for this: resume the whole group, and nothing else.
  bool resumes(std::size_t member) const;
  /// The group's share of a transaction over several nodes; nothing: it is of this node alone.
  std::optional<FleetShare> new_share(std::size_t member) const;

 private:
  void carry_out(const Transaction::Effects& effects);
  void carry_out(Transaction::Effect effect);
  /// Not OK: it has not begun, and nobody has been told.
  Status begin(std::size_t member);
  void ask(const Transaction::Effect& effect);
  /// The operation under way on this member; null: it has ended.
  GroupOperation* operation(std::size_t member) const;
  FleetShare* share_of(GroupEntry& group) const;
  /// Notes this on record in these groups' shares that have not gone on.
  Status note(const std::vector<GroupId>& groups, bool FleetShare::*what);
  void finish();

  Operations& operations_;
  const OperationContext& context_;
  const std::uint64_t number_;
  const Order order_;
  Transaction transaction_;
  std::vector<GroupId> groups_;  // by the transaction's members
  Exchange exchange_;
  Observer observer_;
  const Requester requester_;
  const std::shared_ptr<RemoteNodes> remote_nodes_;
  std::deque<Transaction::Effect> effects_;  // to be carried out
  bool carrying_out_ = false;
  const Time began_ = Clock::now();
  Time in_began_;
  Time out_ended_;
  Duration pause_time_{};  // the longest
  Duration resume_time_{};
};

/// An operation's place in its command.
struct Membership {
  std::shared_ptr<RunningCommand> command = nullptr;  // null: asked for from inside
  std::size_t member = 0;
};

}  // namespace amem
