// Operations: the pauses and resumes under way, whoever asked for them; the swaps, each of which
// links two of them; and who watches.
//
// An operation goes on to its end whether or not its caller stays. What the two parts of a swap do
// to each other is decided in daemon/phases/swap.h.
//
// For the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "amem/v1/broker.pb.h"
#include "daemon/operations/group_operation.h"
#include "daemon/operations/node.h"
#include "daemon/operations/pause_operation.h"
#include "daemon/operations/resume_operation.h"
#include "daemon/phases/swap.h"

namespace amem {

/// Is told how an operation goes. Must not block.
class OperationObserver {
 public:
  virtual ~OperationObserver() = default;
  virtual void progress(const v1::Progress& progress) = 0;
  /// The last call.
  virtual void finished(const Status& status) = 0;
};

class Operations {
 public:
  using Observer = std::shared_ptr<OperationObserver>;
  /// Carries out the actions of a group that has begun something.
  using Drive = std::function<void(GroupEntry&)>;

  /// `means` outlives this object. `duplex`: a swap's second group comes in while the first goes
  /// out.
  Operations(const Means& means, bool duplex, Drive drive)
      : means_(means), node_(means.node), duplex_(duplex), drive_(std::move(drive)) {}

  /// `timeout` 0: the configured one. What is refused is told to the observer at once.
  void start(const Task& task, const std::string& group, Duration timeout,
             const Observer& observer);
  /// `discard`: tags of `out` whose bytes its pause drops.
  void swap(const std::string& out, const std::string& in, const std::set<std::string>& discard,
            Duration timeout, const Observer& observer);

  // ---- actions of the groups ----
  void run(GroupEntry& group, const action::Begun& begun);
  void run(GroupEntry& group, const action::Leaves& leaves);
  void run(GroupEntry& group, const action::Progress& progress);
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

  /// Null: the group is in no such operation.
  PauseOperation* pause_of(GroupId group) { return operation_of<PauseOperation>(group); }
  const ResumeOperation* resume_of(GroupId group) { return operation_of<ResumeOperation>(group); }

  /// The broker is ending: tells every observer so, and those that come later at once.
  void close(const Status& status);

 private:
  struct Swapping {
    Swapping(Swap how, GroupId out_group, Observer who, Duration limit)
        : logic(std::move(how)), out(out_group), observer(std::move(who)), timeout(limit) {}
    Swap logic;
    GroupId out;
    GroupId in = 0;     // once it has begun
    bool held = false;  // it has begun before `out` has left
    SwapLink link;      // of the two operations, when they go on at the same time
    Observer observer;
    Duration timeout;
    Time began = Clock::now();
    Time in_began;
    Time out_ended;
    std::optional<Outcome> pause;
    std::optional<Outcome> resume;
  };
  struct Running {
    Observer observer;               // null: asked for from inside
    std::shared_ptr<Swapping> swap;  // null: a pause or resume alone
    std::variant<std::monostate, PauseOperation, ResumeOperation> operation;  // from Begun on
  };

  Result<GroupEntry*> find(const std::string& name);
  Status begin(GroupEntry& group, const Task& task, Duration timeout, const Observer& observer,
               const std::shared_ptr<Swapping>& swap, bool held = false);
  template <class Kind>
  Kind* operation_of(GroupId group) {
    const auto it = running_.find(group);
    return it != running_.end() ? std::get_if<Kind>(&it->second.operation) : nullptr;
  }
  /// The resume creates its next slice in another turn of the loop.
  void create_later(GroupId group, Epoch epoch);
  void carry_out(const std::shared_ptr<Swapping>& swap, Swap::Next next);
  Status begin_in(const std::shared_ptr<Swapping>& swap, bool held);
  void finish(const Swapping& swap);
  void tell_done(const GroupEntry& group, const Outcome& outcome, const Running& running);

  const Means& means_;
  Node& node_;
  bool duplex_;
  Drive drive_;
  std::map<GroupId, Running> running_;
  Status closed_;  // not OK: why nothing is begun any more
};

}  // namespace amem
