// Groups: the groups from their first rank to their last, and the actions that they want done.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "daemon/base/event_loop.h"
#include "daemon/base/ids.h"
#include "daemon/node/node.h"
#include "daemon/operations/costs.h"
#include "daemon/operations/operations.h"
#include "daemon/reports/events.h"
#include "daemon/sessions/session_server.h"
#include "daemon/stages/stages.h"

namespace amem {

class Groups {
 public:
  /// Everything passed in outlives this object.
  Groups(Node& node, EventLoop& loop, const Deadlines& deadlines, SessionServer& sessions,
         EventHub& events, Operations& operations, Stages& stages)
      : node_(node),
        loop_(loop),
        deadlines_(deadlines),
        sessions_(sessions),
        events_(events),
        operations_(operations),
        stages_(stages) {}

  /// The owner's group of that whole name, for a rank of this peer; it begins with its first rank.
  /// kInvalidArgument: no such name. `stage`: that it names.
  Result<GroupEntry*> join(const std::string& name, const PeerCredentials& peer,
                           std::string_view stage);
  /// Makes a group without ranks, for a process that will start them when the group has its first
  /// turn in this stage. REQUIRES: there is none of this name.
  Result<GroupEntry*> begin(const std::string& name, const std::shared_ptr<Account>& account,
                            const std::string& stage);
  /// One of another broker's, with its members, who are expected back.
  GroupEntry& restore(GroupId id, const std::string& name, std::shared_ptr<Account> account,
                      const RestartState& restart_state, Members members);
  /// The ids before this one have been used.
  void continue_at(GroupId next) { next_group_ = std::max(next_group_, next); }
  /// Tags of a group that may have a policy: all of them are on record, which each phase writes.
  static constexpr std::size_t kMostPolicies = 1024;
  /// `change` sets the policy of a tag, which is on record afterwards; the owner is charged for it.
  /// After an error everything is as before. kInvalidArgument: no such tag, or what may_drop()
  /// answers; kFailedPrecondition: the group does not run, or some memory of the tag is paused;
  /// kResourceExhausted: too many tags have one; what a write of the record answers.
  Status set_policy(GroupEntry& group, const std::string& tag, TagDrop drop,
                    const std::function<void(GroupEntry&)>& change);
  /// Carries out what the group wants, until it wants nothing; then it may be gone.
  void drive(GroupEntry& group);

 private:
  Result<GroupId> new_id();  // that no group has
  Status may_set_policy(const GroupEntry& group, const std::string& tag, TagDrop drop) const;
  MemoryView memory_of(GroupId group) const;
  void forget(GroupId id);
  Result<GroupEntry*> add(const std::string& name, const std::shared_ptr<Account>& account,
                          bool paused, std::string_view stage);
  void act(GroupEntry& group, const action::Answer& answer);
  void act(GroupEntry& group, const action::Waits& waits);
  void act(GroupEntry& group, const action::StateChanged& changed);
  void act(GroupEntry& group, const action::Finished& finished);
  std::string lets_go(const GroupEntry& group, const Outcome& outcome);
  std::vector<TagSave> saves(const GroupEntry& group, const Task& task) const;
  void act(GroupEntry& group, const action::Begun& begun) { operations_.began(group, begun); }
  void act(GroupEntry& group, const action::Overdue&) { operations_.overdue(group.id); }

  Node& node_;
  EventLoop& loop_;
  const Deadlines& deadlines_;
  SessionServer& sessions_;
  EventHub& events_;
  Operations& operations_;
  Stages& stages_;
  CostMeter meter_;
  GroupId next_group_ = 1;
};

}  // namespace amem
