// GroupOperation: one pause or resume of a group, from its begin to its end. It carries out the
// actions of its course. This is what both kinds share, and with what they work.
//
// Each run() carries out one action and tells the course what came of it, which may bring up
// further actions. They come in turn, when the run() has returned.
//
// For the loop's thread; works on the Node's tables. Lives from the group's Begun to its Finished.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/callback_scope.h"
#include "daemon/base/event_loop.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/workers.h"
#include "daemon/node/node.h"
#include "daemon/operations/evictor.h"
#include "daemon/operations/outbox.h"
#include "daemon/operations/restore_space.h"
#include "daemon/operations/running_command.h"
#include "daemon/operations/saved_bytes.h"
#include "daemon/transactions/headroom.h"

namespace amem {

/// All of it outlives every operation.
struct OperationContext {
  Node& node;
  const Devices& devices;
  Workers& workers;
  Outbox& outbox;
  SavedBytes& saved;
  EventLoop& loop;
  Evictor& evictor;
  RestoreSpace& restore_space;
  /// Carries out what the group wants, until it wants nothing. The group may be gone then.
  std::function<void(GroupEntry&)> drive;
  Duration create_limit;  // for what is asked of a device at once; shorter than the phase
  Duration evict_limit;   // for all processes of a group; shorter than the phase
};

/// Returns the devices that each rank of the group sees. kFailedPrecondition: a rank does not say,
/// or sees a device that amemd does not: no deep pause of it is proven.
Result<Evictor::Sets> visible_to(const OperationContext& context, const GroupEntry& group);

class GroupOperation {
 public:
  GroupOperation(const GroupOperation&) = delete;
  GroupOperation& operator=(const GroupOperation&) = delete;
  virtual ~GroupOperation() = default;

  /// Carries out what its course wants next.
  virtual void carry_out(const Action& action) = 0;
  /// Tells its course, and has all carried out that this leads to. This operation may have ended
  /// then.
  void tell(Event event);
  /// A rank of the group, or of an earlier attempt, has answered: what that means for memory and
  /// pool. It may change the status of the answer.
  virtual void answered(Rank&, event::PhaseDone&) {}

  GroupEntry& group() const { return group_; }
  const Membership& of() const { return of_; }
  /// Returns what people should know of it, a sentence each.
  const std::vector<std::string>& remarks() const { return remarks_; }
  const MovedMemory& memory() const { return memory_; }
  /// For who watches, once it has succeeded.
  virtual void report(const Outcome& outcome, v1::Progress& last) const;
  /// Its error, and what only operators may know of it.
  virtual Status for_operators(const Status& status) const { return status; }

 protected:
  GroupOperation(const OperationContext& context, GroupEntry& group, const Task& task,
                 Membership of)
      : context_(context), group_(group), task_(task), of_(std::move(of)) {}

  void run(const action::Ask& ask);
  void run(const action::Arrived& arrived);
  void run(const action::Quiesce& quiesce) {
    tell_command(&RunningCommand::quiesces, quiesce.ranks);
  }
  void run(const action::Reported& report) { tell_command(&RunningCommand::reported, report); }
  void run(const action::Leaves&) {
    tell_command(&RunningCommand::tell_transaction, &Transaction::leaves);
  }
  void run(const action::Ready&) {
    tell_command(&RunningCommand::tell_transaction, &Transaction::ready);
  }
  void run(const action::Unready&) {
    tell_command(&RunningCommand::tell_transaction, &Transaction::unready);
  }
  void run(const action::Left&) {
    tell_command(&RunningCommand::tell_transaction, &Transaction::left);
  }
  void run(const action::Progress& progress);

  /// A callback that comes in a later turn of the loop, or at once: `what`, and then all that the
  /// group wants. It does nothing once this operation has ended, which it may lead to.
  template <class What>
  auto later(What what) {
    return scope_.bind(
        [what = std::move(what), go_on = scope_.bind([this] { go_on(); })](auto&&... args) {
          what(std::forward<decltype(args)>(args)...);
          go_on();
        });
  }
  /// For callbacks after which nothing has to be carried out.
  const CallbackScope& scope() const { return scope_; }
  /// Has all carried out that the group wants. This operation may have ended then.
  void go_on();
  /// Who watches is told what the operation waits for, if that is new.
  void tell_wait();

  /// What becomes of memory that leaves the tables.
  struct Leaves {
    Allocations::Filter filter;               // of the operation's tags, what leaves
    Allocations::Filter handed_on = nullptr;  // of that, what others take; asked once of each
    /// Gets that when the holder has let go of it: only then is it nobody's on record, too.
    std::function<void(MemoryKind, Spare)> take = nullptr;
    /// The rest is being closed; it is gone, from the holder, too.
    std::function<void(const BytesByDevice&)> closes = nullptr;
    std::function<void(const BytesByDevice&)> gone = nullptr;
    Status stays = {};  // what should have left before, and has not
  };
  /// Takes what leaves from the tables, hands it on or closes it, and answers the group with what
  /// the driver says of it. Whatever becomes of this operation, the memory goes.
  void drop(Leaves leaves);
  /// Bytes of each device that these groups have still to take, those of their processes included.
  BytesByDevice needs_of(const std::vector<GroupId>& groups, const Selection& what) const;
  /// Calls of an operation that has ended, such as a resume that was called off, still go on. Then
  /// `again` is called in a while.
  bool calls_go_on(const std::function<void()>& again);
  /// The processes of these ranks.
  std::vector<EvictedProcess> processes_of(const std::vector<RankId>& ranks) const;
  /// In which lanes of the holder memory of these devices is.
  std::set<std::uint32_t> lanes_of(const std::set<DeviceUuid>& devices) const;

  const OperationContext& context_;
  GroupEntry& group_;
  const Task task_;
  const Selection& what_ = task_.selection;
  const Membership of_;
  std::vector<std::string> remarks_;
  MovedMemory memory_;

 private:
  template <class Call, class... Args>
  void tell_command(Call call, const Args&... args) {
    if (of_.command != nullptr) ((*of_.command).*call)(of_.member, args...);
  }
  struct Leaving;
  void close(const std::shared_ptr<Leaving>& leaving);
  void dropped(const Leaving& leaving, const Workers::Uses& after);

  std::uint64_t drops_ = 0;  // the last is the one that counts
  std::string told_wait_;    // what it waits for, as it was last told
  CallbackScope scope_;
};

}  // namespace amem
