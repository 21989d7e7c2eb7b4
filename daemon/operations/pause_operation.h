// PauseOperation: what one pause of a group has while it lasts, and how its actions are carried
// out: who saves what, and in which waves it leaves.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/packet.h"
#include "daemon/memory/block_map.h"
#include "daemon/operations/group_operation.h"
#include "daemon/plans/guests.h"
#include "daemon/plans/waves.h"
#include "daemon/transactions/headroom.h"

namespace amem {

class PauseOperation final : public GroupOperation {
 public:
  /// `exchange`: of a swap; else null. `continues`: an earlier amemd has begun it.
  PauseOperation(const OperationContext& context, GroupEntry& group, const Task& task,
                 Exchange* exchange, bool continues, Membership of)
      : GroupOperation(context, group, task, std::move(of)),
        exchange_(exchange),
        continues_(continues) {}

  void carry_out(const Action& action) override;
  void answered(Rank& rank, event::PhaseDone& done) override;
  void report(const Outcome& outcome, v1::Progress& last) const override;
  Status for_operators(const Status& status) const override;

  /// The rank has looked for zeros. False: it was not asked for that.
  bool measured(RankId rank, const amem_v1_Measured& told);
  // A pause that waits for one of these looks again, in another turn of the loop.
  /// Guests may have closed, ended or been paused, and so not be waited for any more.
  void look_at_guests();
  /// Segments of the pool may have come, or not be coming any more.
  void look_at_pool();
  /// It is settled what becomes of the allocation's bytes, so nobody new may open it.
  bool takes(const Allocation& a) const { return bytes_decided_ && what_.takes(a.tag, a.sharers); }

 private:
  using GroupOperation::run;
  void run(const action::AwaitGuests& await);
  void run(const action::Quiesce& quiesce);
  void run(const action::Permit& permit);
  void run(const action::Measure& measure);
  void run(const action::Save& save);
  void run(const action::Release& release);
  void run(const action::Drop& drop);
  void run(const action::Checkpoint& checkpoint);

  /// The rank says that it has saved what it was last asked for. Returns an error if it has not
  /// named a part that its place is too short for.
  Status check_saved(const Rank& rank) const;
  /// Who has open what would leave.
  std::vector<GuestUse> find_guests() const;
  /// Whether this pause goes on with these.
  Status accept(const std::vector<GuestUse>& guests) const;
  /// It stays on its device, whoever keeps it there.
  void stay(Allocation& a);
  /// It stays, and the rank, its maker, could not bind again what it would have to import: it is
  /// not told to let go of it.
  static bool stays_at(RankId rank, const Allocation& a) { return a.stayed && a.maker == rank; }
  void release_all(const action::Release& release);
  /// In use beside the memory of ranks, which others create and free while processes are
  /// checkpointed.
  BytesByDevice unbrokered(const Workers::Uses& uses) const;
  /// Remarks, at its first deep pause, what its proof is worth.
  void remark_on_proof(const Evictor::Sets& visible);
  /// With what was in use of the devices before, beside the memory of ranks, and afterwards.
  void checkpointed(const Status& status, bool deep, const BytesByDevice& before,
                    const Workers::Uses& after);
  /// Takes what the pool must have space for, and chooses waves where there is need of them.
  Status prepare();
  /// Records what is saved, before a rank can write there. Reserves space for all that the release
  /// will write, because from there on nothing is called off. kResourceExhausted: the record is
  /// full.
  Status put_on_record();
  /// Has the keepers save what leaves in this wave. It does nothing yet where it waits for devices
  /// or the pool.
  void save(Epoch epoch);
  void choose_wave();
  /// Before a restart it had not come to this, so a later pause takes it.
  bool left_for_later(const Allocation& a) const {
    return continues_ && a.resident() && !a.stayed && a.saved.attempt == 0;
  }
  /// Not OK: what no wave has taken stays on its devices.
  Status left_behind() const;
  /// Returns whether the pause has the bytes of this that it keeps.
  bool can_be_released(const Allocation& a) const;
  /// It may leave in waves, so what comes in is looked at first.
  bool may_need_waves() const {
    return exchange_ != nullptr && exchange_->at_once && context_.node.swap_wave > 0;
  }
  /// Amemd makes it for its ranks, and none of those that had it can touch it any more.
  bool is_let_go(const Allocation& a) const;
  /// Which of what leaves in this wave goes to groups that arrive, asked once of each.
  Allocations::Filter handed_on() const;
  /// The memory that leaves waits for a resume. Deep pauses and stages free a device for others, so
  /// they keep nothing.
  bool has_spares() const {
    return context_.node.has_spares() && !task_.deep && !group_.paused_by_stage;
  }
  /// Returns whether what comes in has no space before this group leaves. REQUIRES: exchange_.
  bool lacks_space(const Workers::Uses& uses) const;

  Exchange* const exchange_;
  const bool continues_;
  std::optional<Measurement> measured_;  // when the pool has no space for all bytes as they are
  std::optional<Waves> waves_;           // when what comes in has no space before
  std::set<AllocationId> wave_;          // of waves_, what leaves now
  std::set<RankId> failed_savers_;
  std::set<RankId> have_let_go_;       // of what leaves in this wave, as they say
  std::optional<Workers::Uses> uses_;  // of the devices of what comes in
  // When the phase checkpoint began. A proof counts towards its deadline.
  std::optional<Time> checkpoint_began_;
  bool bytes_decided_ = false;
  RowReservation space_;  // for the rows of the release
  std::vector<GuestUse> guests_;
  bool pool_is_short_ = false;  // the pause fails because of it
};

}  // namespace amem
