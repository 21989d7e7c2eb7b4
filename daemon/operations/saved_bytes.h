// SavedBytes: takes pool chunks for what a pause keeps, and gives them back, but never while a rank
// may still be writing to them.
//
// A Save that was called off (its deadline passed, another rank died) goes on in the rank until the
// rank gets to its next packet. Handing such chunks to another group would let one group's bytes
// overwrite another's, so they wait in the rank's limbo until it has answered, or until its
// process has ended (by pidfd: only then has the driver stopped its copies).
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/packet.h"
#include "daemon/base/event_loop.h"
#include "daemon/memory/block_map.h"
#include "daemon/memory/devices.h"
#include "daemon/memory/packing.h"
#include "daemon/memory/shortage.h"
#include "daemon/node/node.h"

namespace amem {

class SavedBytes {
 public:
  SavedBytes(Node& node, EventLoop& loop) : node_(node), loop_(loop) {}

  /// Returns what this pause must keep.
  std::vector<Allocation*> find_to_save(const GroupEntry& group, const Task& pause);
  /// Takes extents for all of that: retained ones, or else extents that the keepers reach, if there
  /// is space. With `measured` no more than that says is needed. kResourceExhausted: the pool is
  /// too small, nothing has changed. kUnavailable: nothing has changed, but what is missing is
  /// being made, and it may be asked for again when some of that has come.
  Status take(const GroupEntry& group, const Task& pause, const Devices& devices,
              const Measurement* measured);

  /// Which other owners have how much of the pool, for operators: "uid 1000 keeps 64 MiB". Empty:
  /// nobody has any.
  std::string pool_users(const GroupEntry& group) const;

  /// The rank says how it has stored what it was to save in this epoch; what that leaves of the
  /// extents goes back to the pool. kInvalidArgument: it was not to save that, or not there.
  Status stored(const GroupEntry& group, const Rank& rank, const amem_v1_Saved& saved);

  /// The allocation's bytes are not needed in the pool any more.
  void give_back(Allocation& allocation);
  /// As give_back(), of an allocation that stays. If the saver has hashes of all its bytes, the
  /// bytes are retained, and the next pause compares with them.
  void retain(Allocation& allocation);
  /// Frees the retained copy of the allocation, if there is one.
  void forget_retained(const Allocation& allocation);

  /// The rank has been sent a Save of this epoch.
  void sent(Rank& rank, Epoch epoch) { rank.saving.insert(epoch); }
  /// The rank has not saved what it was to in this epoch: nobody knows what is there now.
  void failed(const GroupEntry& group, const Rank& rank, Epoch epoch);
  /// The rank's session has ended, perhaps before amemd learned of it, and its program may run on:
  /// what others have saved of the memory that it shares may not be what they have hashed.
  void may_have_written(const GroupEntry& group, const Rank& rank);
  /// The rank has answered something of this epoch, and handles packets in order.
  void answered(Rank& rank, Epoch epoch, RankPhase phase);
  /// The rank has reconnected, and ends what it was told before it does that.
  void returned(Rank& rank);
  /// The rank's session has ended. Call before it leaves the tables.
  void rank_gone(const GroupEntry& group, Rank& rank);
  /// The extents go back to the pool when the process has ended; null: when it surely has.
  void await_end(SharedFd process, std::shared_ptr<Account> account, Extents extents, Row row,
                 HolderEntry holder_entry);
  /// The extents never go back: nobody can say when the process ends.
  void write_off(std::shared_ptr<Account> account, Extents extents, Row row);
  /// Gives another holder the processes whose ends are awaited.
  void hold_again();

 private:
  struct Ended {  // a session, perhaps not yet its process
    SharedFd process;
    EventLoop::WatchId watch = 0;
    std::shared_ptr<Account> account;
    Extents extents;
    HolderEntry holder_entry;  // of the process
    Row row;  // goes first: without the process the next broker would have to wait for a time
  };

  /// In which orders the pool's segments are used best, and which of them is whose.
  std::vector<SegmentOrder> orders(const OwnPool& pool, const std::vector<Allocation*>& to_save,
                                   const Devices& devices,
                                   std::vector<std::size_t>& order_of) const;
  /// Places for all bytes as they are, or, measured, for what is left of them without zeros.
  Result<std::vector<TakenSpace>> whole(const GroupEntry& group,
                                        const std::vector<Allocation*>& to_save,
                                        const Devices& devices);
  Result<std::vector<TakenSpace>> packed(const GroupEntry& group,
                                         const std::vector<Allocation*>& to_save,
                                         const Devices& devices, const Measurement& measured);
  /// So many bytes are missing, and `why`. kUnavailable: the pool gets larger for it; else `why`.
  Status grow(const GroupEntry& group, std::uint64_t missing, const Status& why);
  /// Makes space in the segments that the keepers reach, at the cost of retained copies there. So
  /// retained copies never make a keeper reach another segment.
  static void clear_reached(OwnPool& pool, const std::vector<Allocation*>& to_save);
  /// Whether the pause takes hashes of the allocation. `gated`: the ranks whose calls all pass a
  /// gate.
  bool hashes(const GroupEntry& group, const Allocation& a, const std::set<RankId>& gated) const;
  std::map<std::string, std::uint64_t> others_bytes(const GroupEntry& group) const;
  void find_remedies(const Account& account, Shortage& shortage) const;
  void free(const std::shared_ptr<Account>& account, const Extents& extents);
  void free_ended(std::uint64_t key);
  /// The rank writes to nothing in its limbo any more.
  void free_limbo(Rank& rank);

  Node& node_;
  EventLoop& loop_;
  std::uint64_t next_key_ = 1;
  std::map<std::uint64_t, Ended> ended_;
};

}  // namespace amem
