// PauseOperation: what one pause of a group has while it lasts, and how its actions are carried
// out: who saves what, and in which waves it leaves.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <optional>
#include <set>

#include "daemon/operations/group_operation.h"
#include "daemon/plans/waves.h"

namespace amem {

class ResumeOperation;

/// Of a swap whose groups move at the same time: what the pause knows of the resume.
struct SwapLink {
  GroupId arriving = 0;
  ResumeOperation* resume = nullptr;  // while it waits for what the pause makes free
};

class PauseOperation final : public GroupOperation {
 public:
  /// `link`, null without a swap, outlives the operation.
  PauseOperation(const Means& means, GroupEntry& group, const Task& task, const SwapLink* link)
      : GroupOperation(means, group, task.selection), task_(task), link_(link) {}

  using GroupOperation::run;
  void run(const action::Quiesce& quiesce);
  void run(const action::Step& step);
  void run(const action::Save& save);
  void run(const action::Release& release);
  void run(const action::Drop& drop);

  /// The rank could not save what it was last asked for.
  void save_failed(RankId rank) { failed_savers_.insert(rank); }

 private:
  /// Takes what the pool must have room for, and chooses waves where there is need of them.
  Status prepare();
  void choose_wave();
  /// The pause has the bytes of this, as far as they are to be kept.
  bool can_be_released(const Allocation& a) const;
  /// The group that comes in has no room before this one leaves.
  bool lacks_room(GroupId arriving) const;

  const Task task_;
  const SwapLink* link_;
  std::optional<Waves> waves_;   // when the other group has no room before
  std::set<AllocationId> wave_;  // what of it leaves now
  std::set<RankId> failed_savers_;
};

}  // namespace amem
