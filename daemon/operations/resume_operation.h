// ResumeOperation: what one resume of a group has while it lasts, and how its actions are carried
// out: what is still to be created, within which headroom, and who loads it.
//
// Memory is created in slices, on the devices' threads, and each is sent to its keepers at once.
// What a rank has made itself, so that the driver lets it bind it to a multicast object, that rank
// makes again. From then on it is like any other.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "amem/v1/session.pb.h"
#include "common/fd.h"
#include "daemon/operations/group_operation.h"
#include "daemon/plans/creation.h"
#include "daemon/plans/plan.h"
#include "daemon/transactions/headroom.h"

namespace amem {

class ResumeOperation final : public GroupOperation {
 public:
  ResumeOperation(const OperationContext& context, GroupEntry& group, const Task& task,
                  Membership of);
  ~ResumeOperation() override;

  void carry_out(const Action& action) override;

  /// A rank has made what it was to make again, as far as it says so.
  void made(RankId rank, const amem_v1_Made& message, std::vector<Fd> fds);
  /// The rank has gone, and is no sharer any more: what it was to make others may hold.
  void maker_gone(RankId rank);
  /// So much device memory is free again: who waits for it tries again.
  static void left(Exchange& exchange, const BytesByDevice& bytes);
  /// Some memory has left: if it waits for that, it tries again.
  void look_for_space();
  /// Who loads what, as far as it has been sent.
  const Loaders& loaders() const { return loaders_; }

 private:
  using GroupOperation::run;
  void run(const action::Restore& restore);
  void run(const action::Admit& admit);
  void run(const action::Create& create);
  void run(const action::Vacated& space);
  void run(const action::Load& load);
  void run(const action::Release& release);
  void run(const action::Drop& drop);
  void run(const action::Arrived& arrived);

  using Space = std::function<void(const Result<RestoreClaim>&)>;
  /// Answers once the trial has found space for the restore; in time for it to be done `by`.
  void make_space_for_restore(Time by, const Space& answer);
  void try_restore_space(Time until, const Space& answer);
  void await_restore_space(const std::string& lack, Time until, const Space& answer);
  /// Empty: there seems to be space.
  std::string lack_for_restore(const Workers::Uses& uses) const;
  /// These need memory of a device that another group's restore has to itself; calls `again` later.
  bool waits_for_restore(const std::vector<GroupId>& groups, const std::function<void()>& again);
  void look_at_devices();
  /// With what is in use of the devices that it needs, and what was leaving before that was seen:
  /// it may be free already. What is counted twice create finds out.
  void admit(const Workers::Uses& uses, const BytesByDevice& leaves);
  /// Has slices of what is missing created, some at a time; tells the group when all of it is
  /// there.
  void create_more();
  struct Batch {  // of a slice, on one device, to be made by amemd or by one rank
    std::vector<Creation::Item> items;
    std::vector<Charge> charges;
    std::vector<Workers::Wish> wishes;
    bool limited = false;  // others had memory of the device that was to leave

    void take(Batch& from, std::size_t i);
  };
  struct Asked {  // of a rank
    RankId maker = 0;
    Batch batch;
    EventLoop::TimerId late = {};
    RestoreSpace::Claim making = {};
  };
  using Taken = std::map<AllocationId, Spare>;
  /// `spares`: of these items, what takes the place of new memory.
  Status create(const std::vector<Creation::Item>& slice, Taken& spares);
  /// Returns what groups that leave may hand on.
  KindCounts awaited_spares() const;
  /// Spares that nobody lacks are closed.
  void close_spares();
  void ask(RankId maker, Batch batch);
  void not_made(std::uint64_t number);
  /// It has to be created otherwise, if anybody holds it still.
  void create_otherwise(const Creation::Item& item);
  /// A callback for the workers: created(), if this still creates then.
  std::function<void(Workers::AllMade)> to_created(const std::shared_ptr<Batch>& batch);
  void created(Batch& batch, Workers::AllMade& made);
  /// Puts back what finds no space while another group leaves. This is not a failure.
  Status not_created(const Creation::Item& item, bool limited, const Status& why);
  /// To its keepers, who map and load it.
  void send(const std::vector<const Allocation*>& slice);
  bool creates() const;
  /// Checks that what its ranks have opened of other groups is there to be mapped.
  Status check_opened() const;

  Exchange alone_;  // of one that ranks have asked for
  Exchange& exchange_;
  Epoch epoch_;  // in which it creates
  Creation creation_;
  std::size_t under_way_ = 0;             // batches
  std::map<std::uint64_t, Asked> asked_;  // of these, of ranks; by number
  std::uint64_t last_asked_ = 0;
  bool awaits_space_ = false;                         // nothing more of it fits in the headroom
  bool restore_poll_scheduled_ = false;               // whether another group's restore has ended
  std::size_t space_retries_ = 0;                     // for space that was missing
  std::vector<std::shared_ptr<const void>> created_;  // handles, released once it has ended
  std::set<AllocationId> in_place_;                   // what has its bytes, and need not be loaded
  Loaders loaders_;
};

}  // namespace amem
