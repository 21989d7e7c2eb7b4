// Operations: the pauses and resumes under way, whoever asked for them; and what commands wait for
// before they begin.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/node/names.h"
#include "daemon/node/node.h"
#include "daemon/operations/elastic_pool.h"
#include "daemon/operations/group_operation.h"
#include "daemon/operations/pause_operation.h"
#include "daemon/operations/resume_operation.h"
#include "daemon/operations/running_command.h"
#include "daemon/transactions/transaction.h"

namespace amem {

class Operations {
 public:
  using Observer = RunningCommand::Observer;
  using Groups = std::vector<NamedGroup>;  // names: what the observer is told

  /// `context` outlives this object. `duplex`: in a swap one comes in while the other goes out.
  Operations(const OperationContext& context, bool duplex)
      : context_(context), node_(context.node), duplex_(duplex), elastic_(context) {}

  /// Tells the observer of a refusal at once; then nothing has changed. `remote_nodes`: other nodes
  /// have a part of it, too; it is asked while the observer is told. `who`: has asked for it.
  /// Returns the transaction's number; 0: refused, or it must be proven first that deep pauses work
  /// here, or ranks of these groups pause or resume some of their own, or host memory is pinned for
  /// it: nothing begins before that. Over several nodes nobody waits for memory with the gates of
  /// the others shut: it is pinned in the phase save.
  std::uint64_t start(const Order& order, const Observer& observer, const Requester& who,
                      std::shared_ptr<RemoteNodes> remote_nodes = nullptr);
  /// The same, of an order that pauses groups and resumes others.
  std::uint64_t swap(const Order& order, const Observer& observer, const Requester& who,
                     std::shared_ptr<RemoteNodes> remote_nodes = nullptr);

  // ---- what other nodes say of a transaction that they take part in; once it has ended: nothing
  /// PermitOf or CutTaken, to its operation on the group of that name.
  void tell(std::uint64_t number, const std::string& group, const Event& event);
  /// False: it does not, as it has ended, or is about to.
  bool may_go_on(std::uint64_t number, Side side);
  /// What has not gone on ends as it began. REQUIRES: no node was told to go on with that.
  void give_up(std::uint64_t number, const Status& why);

  // ---- what ranks say of what is under way ----
  void answered(GroupEntry& group, Rank& rank, event::PhaseDone done);
  void answered(GroupEntry& group, Rank& rank, event::CutStatus status);
  void tell(GroupEntry& group, Event event);

  // ---- what groups say ----
  void began(GroupEntry& group, const action::Begun& begun);
  void ended(GroupEntry& group, const Outcome& outcome);
  /// It has been paused for deep.after.
  void overdue(GroupId group);

  // The pauses that wait for something look again, in another turn of the loop.
  /// Guests may have closed, ended or been paused.
  void look_at_guests();
  /// Segments of the pool may have come, or not be coming any more.
  void look_at_pool();
  ElasticPool& elastic() { return elastic_; }
  /// Closes the spares that no group lacks any more.
  void close_spares();

  /// Whether this node lets groups do that, whoever asks.
  Status allows(const Task& task) const;

  /// Returns what is under way; null: nothing.
  GroupOperation* of(GroupId group) const {
    const auto it = running_.find(group);
    return it != running_.end() ? it->second.get() : nullptr;
  }
  /// Null: the group is in no such operation.
  PauseOperation* pause_of(GroupId group) const { return dynamic_cast<PauseOperation*>(of(group)); }
  ResumeOperation* resume_of(GroupId group) const {
    return dynamic_cast<ResumeOperation*>(of(group));
  }
  /// Whether an operator has asked for the whole group to be resumed, and that is under way.
  bool resumes_for_operator(GroupId group) const;

  /// An operation on this group waits for its ranks (Group::local()).
  bool await_ranks_of(GroupId group) const;

  // ---- for commands ----
  /// Begins the operation of a command's member. Not OK: it has not begun, and nobody was told.
  Status begin(GroupEntry& group, const Task& task, Duration timeout, Barrier barrier,
               Membership of);
  /// It has ended.
  void forget(std::uint64_t number) { spanning_.erase(number); }

  /// The broker is to end: what is under way goes on to its end, and nothing new begins.
  void refuse_new_work(const Status& why) { refusal_ = why; }
  /// Not OK: why nothing new begins. Ranks that ask for their own group are told the same.
  const Status& refusal() const { return refusal_; }
  /// The broker is ending: tells every observer so, and those that come later at once.
  void close(const Status& status);
  /// Not OK: that has been called.
  const Status& closed() const { return closed_; }

 private:
  /// What waits until no ranks of these groups pause or resume some of their own.
  struct AwaitsRanks {
    Groups groups;
    Observer observer;
    std::function<void()> again;
  };

  /// True: ranks of these groups pause or resume some of their own, and `again` is called when they
  /// have done. What waits for its devices only lets this go first.
  bool await_ranks(const Groups& groups, const Observer& observer, std::function<void()> again);
  bool local(const Groups& groups) const;
  Status set_ranks_aside(const Groups& groups);
  void look_at_ranks();
  /// Begins what ranks of these groups ask for, if it can.
  void look_at_requests(const Groups& groups);
  /// Returns what the ranks of these groups see. REQUIRES: check() of a deep pause has passed.
  Evictor::Sets visible_to(const Groups& groups) const;
  /// Whether all of these can begin: each is named once, and in the right state.
  Status check(const Groups& groups, const Task& task, const Parts& parts);
  /// True: it is not known yet whether deep pauses of these work, and `go_on` is called when it is.
  bool await_proof(const Evictor::Sets& visible, const Observer& observer,
                   std::function<void()> go_on);
  /// Begins all of it. Returns its number; 0: refused.
  std::uint64_t run(const Order& order, const Observer& observer, const Requester& who,
                    std::shared_ptr<RemoteNodes> remote_nodes);
  void deepen(GroupId id);
  /// Returns the command of a transaction over several nodes that has not ended; null: there is
  /// none of that number.
  std::shared_ptr<RunningCommand> spanning(std::uint64_t number) const;
  void remember(const GroupOperation& operation, const Outcome& outcome);

  const OperationContext& context_;
  Node& node_;
  bool duplex_;
  ElasticPool elastic_;
  std::map<GroupId, std::unique_ptr<GroupOperation>> running_;
  std::map<GroupId, Membership> begins_;  // of those whose group has not said so yet
  std::list<AwaitsRanks> await_ranks_;    // in the order in which they came
  std::multiset<Observer> await_proof_;   // of deep pauses that have not begun
  std::map<std::uint64_t, std::weak_ptr<RunningCommand>>
      spanning_;  // transactions over several nodes
  std::uint64_t last_number_ = 0;
  Status closed_;   // not OK: why nothing goes on, and nothing is begun any more
  Status refusal_;  // not OK: why nothing new is begun
};

}  // namespace amem
