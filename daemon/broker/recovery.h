// Recovery: fills the broker's tables with what another amemd has left in the record and with the
// holder. Ranks are expected then, and say the rest when they reconnect (daemon/broker/ranks.h);
// what was under way goes on as the table of phases says.
//
// For the loop's thread, before anybody is served.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "amem/v1/record.pb.h"
#include "common/fd.h"
#include "daemon/broker/groups.h"
#include "daemon/broker/ranks.h"
#include "daemon/holder/wire.h"
#include "daemon/node/node.h"
#include "daemon/operations/group_operation.h"
#include "daemon/owners/account.h"
#include "daemon/record/record_log.h"

namespace amem {

/// What the holder had, by its keys.
using HolderDescriptors = std::map<HolderKey, Fd>;

/// The chunk of the pool that the rows are about; 0: there are none. kDataLoss: a row that is none.
Result<std::uint64_t> recorded_chunk(const RecordLog& log);

class Recovery {
 public:
  /// Everything passed in outlives this object.
  Recovery(const OperationContext& context, Accounts& accounts, Groups& groups, Ranks& ranks,
           Stages& stages)
      : node_(context.node),
        workers_(context.workers),
        saved_(context.saved),
        accounts_(accounts),
        groups_(groups),
        ranks_(ranks),
        stages_(stages) {}

  /// Takes up what can be; what cannot is named in the log and let go of, and nobody else loses by
  /// it. kDataLoss: the rows are not to be read, nothing has changed.
  Status run(HolderDescriptors descriptors);

 private:
  /// A rank's process, as far as it is known.
  struct Process {
    Fd fd;              // empty: it has ended, or is lost
    bool held = false;  // the holder has the descriptor
    bool lost = false;  // it may live, and nobody can say when it ends
  };
  struct Member {
    v1::record::Rank row;
    Process process;
  };
  struct Memory {
    v1::record::Allocation row = {};
    const v1::record::Saved* saved = nullptr;
    std::vector<RankId> sharers = {};  // that live
    bool resident = false;
    bool incoming = false;  // it is on its device by what a resume has made
  };

  Status read(const RecordLog& log);
  Process find_process(HolderDescriptors& descriptors, RankId id, pid_t pid,
                       std::uint64_t pid_namespace);
  /// The holder keeps the process, which it may have got from the broker before.
  HolderEntry hold_process(RankId id, bool held, const SharedFd& process);
  void find_members(HolderDescriptors& descriptors);
  /// Which of the group's processes may live and are not known any more. Empty: none.
  std::string find_lost(GroupId group) const;
  /// Which of the group's memory a rank may have open whose group is not taken up. Empty: none.
  std::string find_unknown_guest(const std::map<AllocationId, Memory>& memory) const;
  /// Gives back what find_memory() has taken of the pool for it.
  void give_back(GroupId id, std::map<AllocationId, Memory>& found);
  /// The group is not taken up.
  void leave(GroupId id, std::map<RankId, Member>& members, const std::string& why,
             HolderDescriptors& descriptors);
  void take_pool(HolderDescriptors& descriptors);
  /// Which of the group's memory there is. Not empty: what is missing.
  std::string find_memory(GroupId group, const HolderDescriptors& descriptors,
                          std::map<AllocationId, Memory>& found);
  /// A pause goes on. No rank was told to let go of this memory, and its bytes may not be safe. So
  /// it stays on its device until a later pause.
  static bool left_for_later(const v1::record::Group& group, const Interrupted& what,
                             const Memory& memory);
  /// `what`: the operation that was under way.
  void take_group(GroupId id, std::map<RankId, Member>& members, std::optional<Interrupted> what);
  void take_memory(GroupEntry& group, AllocationId id, const Memory& memory,
                   HolderDescriptors& descriptors);
  /// Fills the allocation with what its row says.
  void fill(Allocation& a, const v1::record::Allocation& row,
            const std::shared_ptr<Account>& account);
  void put_on_device(Allocation& a, HolderKind kind, const std::shared_ptr<Account>& account,
                     HolderDescriptors& descriptors);
  void take_guests_memory(HolderDescriptors& descriptors);
  void leave_to_writers(GroupId id, std::map<RankId, Member>& members,
                        HolderDescriptors& descriptors);
  void take_limbo(HolderDescriptors& descriptors);
  Row adopt(RowKind kind, std::uint64_t id);
  void drop_unadopted(const HolderDescriptors& descriptors);
  std::shared_ptr<Account> account_of(const v1::record::Owner& owner) {
    return accounts_.of(from_record(owner));
  }

  Node& node_;
  Workers& workers_;
  SavedBytes& saved_;
  Accounts& accounts_;
  Groups& groups_;
  Ranks& ranks_;
  Stages& stages_;

  v1::record::Life life_;
  std::map<GroupId, v1::record::Group> groups_read_;
  std::map<RankId, v1::record::Rank> ranks_read_;
  std::map<AllocationId, v1::record::Allocation> allocations_read_;
  std::map<GroupId, std::vector<AllocationId>> of_group_;  // of these, by their ids
  std::map<AllocationId, v1::record::Saved> saved_read_;
  std::map<std::uint64_t, v1::record::Segment> segments_read_;
  std::map<RankId, v1::record::Limbo> limbo_read_;
  std::map<GroupId, std::map<RankId, Member>> members_;
  std::set<GroupId> left_;                    // not taken up
  std::map<GroupId, std::set<RankId>> lost_;  // whose processes may live, and are not known
  std::map<RankId, GroupId> group_of_;        // of those that live
  std::set<RowKey> rows_;                     // that nobody has adopted yet
};

}  // namespace amem
