// ResumeOperation: what one resume of a group has while it lasts, and how its actions are carried
// out: what is still to be created, within which headroom, and who loads it.
//
// Memory is created in slices, each of which is sent to its keepers at once; the loop serves others
// in between.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <functional>
#include <vector>

#include "daemon/operations/exchange.h"
#include "daemon/operations/group_operation.h"
#include "daemon/plans/creation.h"
#include "daemon/plans/plan.h"

namespace amem {

class ResumeOperation final : public GroupOperation {
 public:
  /// Sees to it that create_slice() is called soon, while the group is in kCreate of this epoch.
  using Later = std::function<void(Epoch)>;

  /// `exchange`: of an order of an operator's; null: begun from inside, by itself.
  ResumeOperation(const Means& means, GroupEntry& group, Selection what, Exchange* exchange,
                  Later later);
  ~ResumeOperation();

  using GroupOperation::run;
  void run(const action::Admit& admit);
  void run(const action::Create& create);
  void run(const action::Room& room);
  void run(const action::Load& load);
  void run(const action::Release& release);
  void run(const action::Drop& drop);
  void run(const action::Arrived& arrived);

  /// Creates a slice of what is missing and sends it; then tells the group, or comes again later,
  /// when there is room for the next.
  void create_slice();
  /// Some memory has left: if it waits for that, it tries again.
  void look_for_room();
  /// Who loads what, as far as it has been sent.
  const Loaders& loaders() const { return loaders_; }

 private:
  /// What finds no room while another group leaves is put back, and that is no failure.
  Status create_again(const Creation::Item& item, Allocation& a);
  /// What its ranks have opened of other groups is there to be mapped.
  Status check_opened() const;

  Exchange alone_;  // of one that has no other
  Exchange& exchange_;
  const Later later_;
  Epoch epoch_;  // in which it creates
  Creation creation_;
  bool awaits_room_ = false;           // nothing more of it fits in the headroom
  std::vector<MemoryHandle> created_;  // released once it has ended
  Loaders loaders_;
};

}  // namespace amem
