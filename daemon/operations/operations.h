// Operations: the pauses and resumes under way, whoever asked for them; the transactions of
// operators, each for one group or several, that they are part of; and who watches.
//
// An operation goes on to its end whether or not its caller stays. What the operations of a
// transaction do to each other is decided in daemon/transactions/transaction.h.
//
// For the loop's thread.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "daemon/node/names.h"
#include "daemon/node/node.h"
#include "daemon/operations/group_operation.h"
#include "daemon/operations/pause_operation.h"
#include "daemon/operations/resume_operation.h"
#include "daemon/owners/caller.h"
#include "daemon/transactions/headroom.h"
#include "daemon/transactions/transaction.h"

namespace amem {

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
struct Asker {
  // Implicit: mostly it is an operator.
  Asker(std::string who_asks) : who(std::move(who_asks)) {}
  Asker(const Caller& caller) : who(caller.who), sees_all(caller.operates || caller.sees_all) {}
  Asker(std::string who_asks, std::string its_stage, std::string its_why)
      : who(std::move(who_asks)), stage(std::move(its_stage)), why(std::move(its_why)) {}

  std::string who;         // for people; the ranks are told
  std::string stage = {};  // that switches its groups; empty: none
  std::string why = {};    // it does, for people
  bool sees_all = false;   // is told of all owners
};

class Operations {
 public:
  using Observer = std::shared_ptr<OperationObserver>;
  /// Carries out the actions of a group that has begun something.
  using Drive = std::function<void(GroupEntry&)>;

  using Groups = std::vector<NamedGroup>;  // names: what the observer is told
  /// Of groups that go out, where only this leaves; they do not run on without it.
  using Parts = std::map<GroupId, Selection>;

  /// `means` outlives this object. `duplex`: in a swap one comes in while the other goes out.
  Operations(const Means& means, bool duplex, Drive drive)
      : means_(means), node_(means.node), duplex_(duplex), drive_(std::move(drive)) {}

  /// All of these groups, or none. `timeout` 0: the configured one. What is refused is told to the
  /// observer at once, and nothing has changed. `abroad`: other nodes have a part of it, too; it is
  /// asked as long as the observer is told. `who`: has asked for it. Returns
  /// the transaction's number; 0: refused, or it must be proven first that deep pauses work here,
  /// or ranks of these groups pause or resume some of their own: nothing begins before that.
  std::uint64_t start(const Task& task, const Groups& groups, Duration timeout,
                      const Observer& observer, const Asker& who,
                      std::shared_ptr<Abroad> abroad = nullptr, const Parts& parts = {});
  /// `pause`: of `out`, with all tags but for `parts`.
  std::uint64_t swap(const Groups& out, const Groups& in, const Task& pause, Duration timeout,
                     const Observer& observer, const Asker& who,
                     std::shared_ptr<Abroad> abroad = nullptr, const Parts& parts = {});

  // ---- what other nodes say of a transaction that they take part in; once it has ended: nothing
  // ----
  /// StepOf or CutTaken, to its operation on the group of that name.
  void tell(std::uint64_t number, const std::string& group, const Event& event);
  /// False: it does not, as it has ended, or is about to.
  bool may_go_on(std::uint64_t number, Stage stage);
  /// What has not gone on ends as it began. REQUIRES: no node was told to go on with that.
  void give_up(std::uint64_t number, const Status& why);

  // ---- actions of the groups ----
  void run(GroupEntry& group, const action::Begun& begun);
  void run(GroupEntry& group, const action::Quiesce& quiesce);
  void run(GroupEntry& group, const action::Reported& report);
  void run(GroupEntry& group, const action::Save& save);
  void run(GroupEntry& group, const action::Leaves& leaves);
  void run(GroupEntry& group, const action::Ready& ready);
  void run(GroupEntry& group, const action::Left& left);
  void run(GroupEntry& group, const action::Unready& unready);
  void run(GroupEntry& group, const action::Progress& progress);
  void run(GroupEntry& group, const action::Overdue& overdue);
  void run(GroupEntry& group, const action::Finished& finished);
  /// Those that the operation under way carries out.
  template <class What>
  void run(GroupEntry& group, const What& action) {
    const auto it = running_.find(group.id);
    if (it == running_.end()) return;
    std::visit(
        [&](auto& operation) {
          if constexpr (requires { operation.run(action); }) operation.run(action);
        },
        it->second.operation);
  }

  // The pauses that wait for something look again, in another turn of the loop.
  /// Guests may have closed, ended or been paused.
  void look_at_guests() { look_again(Phase::kGuests, &PauseOperation::look_at_guests); }
  /// Segments of the pool may have come, or not be coming any more.
  void look_at_pool() { look_again(Phase::kSave, &PauseOperation::look_at_pool); }

  /// Whether this node lets groups do that, whoever asks.
  Status allows(const Task& task) const;

  /// Null: the group is in no such operation.
  PauseOperation* pause_of(GroupId group) { return operation_of<PauseOperation>(group); }
  ResumeOperation* resume_of(GroupId group) { return operation_of<ResumeOperation>(group); }
  /// Whether an operator has asked for the whole group to be resumed, and that is under way.
  bool resumes_for_operator(GroupId group) const;

  /// An operation on this group waits for its ranks (Group::local()).
  bool await_ranks_of(GroupId group) const;

  /// The broker is to end: what is under way goes on to its end, and nothing new begins.
  void take_no_more(const Status& why) { refusal_ = why; }
  /// Not OK: why nothing new begins. Ranks that ask for their own group are told the same.
  const Status& refusal() const { return refusal_; }
  /// The broker is ending: tells every observer so, and those that come later at once.
  void close(const Status& status);

 private:
  /// What an operator has asked for.
  struct Request {
    Request(Transaction members, Task out, Task in, Duration limit, Observer who)
        : transaction(std::move(members)),
          pause(std::move(out)),
          resume(std::move(in)),
          timeout(limit),
          observer(std::move(who)) {}
    std::uint64_t number = 0;  // counted since the broker began
    Transaction transaction;
    std::vector<GroupId> groups;  // by the transaction's members
    Exchange exchange;
    Task pause;
    Task resume;
    Duration timeout;
    Observer observer;  // null: the broker is ending
    std::shared_ptr<Abroad> abroad = nullptr;
    bool by_broker = false;  // nobody has asked for it: deep.after
    Asker asker = std::string();
    std::deque<Transaction::Step> steps;  // to be carried out
    bool stepping = false;
    Time began = Clock::now();
    Time in_began;
    Time out_ended;
    Duration pause_time{};  // the longest
    Duration resume_time{};
  };
  using RequestPtr = std::shared_ptr<Request>;
  struct Running {
    RequestPtr request;  // null: asked for from inside
    std::size_t member = 0;
    std::uint64_t serial = 0;  // of the operation; never used twice
    std::string waits_for;     // as it was last told
    std::variant<std::monostate, PauseOperation, ResumeOperation> operation;  // from Begun on
  };

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
  /// What ranks of these groups ask for begins, if it can.
  void look_at_requests(const Groups& groups);
  /// What the ranks of these groups see. REQUIRES: check() of a deep pause has passed.
  DeepProof::Sets visible_to(const Groups& groups) const;
  /// What the operation under way waits for, if that is new.
  void tell_wait(const GroupEntry& group);
  /// Whether all of these can begin: each is named once, and in the right state.
  Status check(const Groups& groups, const Task& task, const Parts& parts = {});
  /// What a task of all means for this group.
  static Task part_of(Task task, GroupId group, const Parts& parts);
  /// Begins all of it.
  std::uint64_t start(const RequestPtr& request);
  /// Because it has been paused for deep.after.
  void deepen(GroupId id);
  /// Of a transaction over several nodes that has not ended; null: there is none of that number.
  RequestPtr abroad(std::uint64_t number) const;
  const std::string& name_of(const Running& running) const {
    return running.request->transaction.name(running.member);
  }
  void carry_out(const RequestPtr& request, const Transaction::Steps& steps);
  void carry_out(const RequestPtr& request, Transaction::Step step);
  Status begin(const RequestPtr& request, std::size_t member);
  /// The group's of a transaction over several nodes; null: it has none.
  static FleetShare* share_of(const Request& request, GroupEntry& group);
  /// Of these groups' shares that have not gone on, on record.
  Status note(const Request& request, const std::vector<GroupId>& groups, bool FleetShare::*what);
  template <class Kind>
  Kind* operation_of(GroupId group) {
    const auto it = running_.find(group);
    return it != running_.end() ? std::get_if<Kind>(&it->second.operation) : nullptr;
  }
  /// Those in that phase.
  void look_again(Phase phase, bool (PauseOperation::*look)());
  /// To the operation that has just begun.
  Back back_to(GroupId group);
  void finish(const Request& request);
  void remember(const GroupEntry& group, const Outcome& outcome, const Request* request,
                std::vector<std::string> remarks);
  /// REQUIRES: it has a request.
  static v1::Progress progress_of(const Running& running);
  void tell_done(const GroupEntry& group, const Outcome& outcome, const Running& running);

  const Means& means_;
  Node& node_;
  bool duplex_;
  Drive drive_;
  std::map<GroupId, Running> running_;
  std::list<AwaitsRanks> await_ranks_;                      // in the order in which they came
  std::multiset<Observer> await_proof_;                     // of deep pauses that have not begun
  std::map<std::uint64_t, std::weak_ptr<Request>> abroad_;  // transactions over several nodes
  std::uint64_t last_serial_ = 0;
  std::uint64_t last_number_ = 0;
  Status closed_;   // not OK: why nothing goes on, and nothing is begun any more
  Status refusal_;  // not OK: why nothing new is begun
};

}  // namespace amem
