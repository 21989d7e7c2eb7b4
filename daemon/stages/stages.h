// Stages: the stages of this node. Whenever something has changed, and once a second, a stage is
// advanced, once in a turn of the loop: StageViews reads the tables, daemon/turns decides, and a
// switch is carried out as one transaction of Operations.
//
// For the loop's thread; works on the Node's tables.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "common/packet.h"
#include "common/status.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/event_loop.h"
#include "daemon/memory/devices.h"
#include "daemon/node/node.h"
#include "daemon/operations/operations.h"
#include "daemon/owners/caller.h"
#include "daemon/reports/events.h"
#include "daemon/sessions/session_server.h"
#include "daemon/settings/stage_settings.h"
#include "daemon/stages/stage_view.h"
#include "daemon/stages/waits.h"
#include "daemon/turns/decide.h"

namespace amem {

/// Checks stages against this node's devices. kInvalidArgument: a device is not there or is in two
/// stages, or a rule makes no sense; the text names the setting.
Status check_stages(const std::vector<StageSettings>& settings, const Devices& devices);

class Stages {
 public:
  /// Everything passed in outlives this object. REQUIRES: check_stages() accepts them, or open() is
  /// not called.
  Stages(const OperationContext& context, SessionServer& sessions, EventHub& events,
         Operations& operations);
  ~Stages();
  Stages(const Stages&) = delete;

  /// Once, before any group.
  void open(const std::vector<StageSettings>& settings);
  /// Nothing is switched any more, and all that is waited for ends.
  void close(const Status& why);

  // ---- groups and ranks ----
  /// The group of this owner that waits for its first rank, and is the rank's by its whole name;
  /// null: there is none.
  GroupEntry* started_for(const Account& account, const std::string& name);
  /// A group of this name would begin with a first turn in this stage, so it begins paused.
  bool begins_paused(const std::shared_ptr<Account>& account, const std::vector<gid_t>& gids,
                     const std::string& name, std::string_view stage) const;
  /// A rank has joined its group, or has reconnected: its Hello's stage, or none.
  void rank_joined(GroupEntry& group, const Rank& rank, std::string_view stage);
  /// The group is as another broker has left it.
  void restored(GroupEntry& group);
  /// A rank has gone, or the group's state has changed.
  void changed(const GroupEntry& group);
  void finished(const GroupEntry& group, const Outcome& outcome);
  void ended(const GroupEntry& group);
  void work(Rank& rank, const amem_v1_Work& work);
  /// Somebody is to start the group's first rank.
  bool awaits_first_rank(GroupId group) const { return waits_.any(group, StageWaits::For::kStart); }

  // ---- what is waited for ----
  using WaitId = StageWaits::Number;
  /// Whether a process of this caller can start this group in the stage. kInvalidArgument,
  /// kFailedPrecondition; kNotFound: no such stage.
  Status check_start(const Caller& caller, const std::string& name, const std::string& stage) const;
  /// Returns whether a group that is not there gets a first turn. Returns false if it begins
  /// without one. Returns an error if it can take no turns. REQUIRES: check_start().
  Result<bool> may_begin(const Caller& caller, const std::string& name,
                         const std::string& stage) const;
  /// A process of this caller is to start the ranks of the group: waits for the group's first turn.
  /// kDeadlineExceeded: not within `timeout` (0: none). kResourceExhausted: the owner's quota.
  WaitId start(const Caller& caller, GroupEntry& group, Duration timeout, StageWaits::Done done);
  /// The group asks for its turn. kFailedPrecondition: the policy is another one, or the group
  /// takes no turns; kAborted: it has ended; kDeadlineExceeded.
  WaitId lease(const GroupEntry& group, Duration timeout, StageWaits::Done done);
  /// A stage switches one of these now.
  bool switches(const Operations::Groups& groups) const;
  /// Calls `go` when that switch has ended, before the stage begins another. kDeadlineExceeded: it
  /// has not within `timeout` (0: no limit).
  WaitId after_switch(const Operations::Groups& groups, Duration timeout, StageWaits::Done go);
  /// The caller waits no more; it may have got what it waited for.
  void forget(WaitId wait);
  /// The turn ends. Without effect if it has none. With every policy: a first turn ends.
  Status yield(GroupEntry& group);

  // ---- operators ----
  /// An operator pauses these groups. What their stages have paused stays so from now on, until
  /// somebody resumes it. Returns which of them are left to be paused.
  Operations::Groups adopt_as_operator_pause(const Operations::Groups& groups);
  /// An operator has tried to resume these, and they are paused still: their stages resume them
  /// when it is their turn.
  void hand_back_to_stage(const Operations::Groups& groups);
  /// The stage that would get this group by that; empty: none.
  std::string stage_to_resume(const GroupEntry& group) const;

  struct Change {
    std::optional<std::string> stage;  // empty: none
    std::optional<std::uint32_t> weight;
    std::optional<std::int32_t> priority;
    std::optional<Duration> longest_wait;
    std::optional<std::vector<std::string>> leave_first;   // tags; empty: none
    std::optional<std::vector<std::string>> return_order;  // tags, in their order
  };
  /// kNotFound: no such stage. kPermissionDenied: it is for others. Else as can_wish(); then
  /// nothing changes.
  Status set(const Caller& caller, GroupEntry& group, const Change& change);

  /// kNotFound: no such stage. Empty: all.
  Status report(const Caller& caller, const std::string& stage, v1::TurnsResponse& response);
  /// Figures for metrics are as of now.
  void account_time();

 private:
  struct LastSwitch {
    Switch what;
    std::chrono::system_clock::time_point at;  // it began
    Time began{};
    Duration took{};  // 0: it is under way
    Status status;
  };
  struct Stage : StageRules {
    explicit Stage(StageFigures& its_figures) : figures(its_figures) {}
    StageFigures& figures;
    std::vector<uid_t> users = {};   // whose groups may join; neither users nor groups: everybody's
    std::vector<gid_t> groups = {};  // as users
    StageMemory memory = {};
    OthersUse others = {};                // when last seen
    std::optional<Time> unseen = Time{};  // memory was last on its way then, and not seen since
    std::optional<LastSwitch> last = {};
    std::optional<EventLoop::TimerId> timer = {};
    bool due = false;                      // it is advanced in the next turn of the loop
    std::map<GroupId, Time> runs = {};     // the groups that run, and since when
    std::map<GroupId, Time> waiting = {};  // the groups that wait, and since when
    std::optional<Time> accounted = {};    // when figures were last brought up
  };

  Stage* find(std::string_view name);
  const Stage* find(std::string_view name) const;
  std::string names() const;
  /// Not OK: kPermissionDenied.
  static Status admits(const Stage& stage, const Account& account, const std::vector<gid_t>& gids,
                       bool operates);
  StageView view_of(const Stage& stage) const;
  bool takes_turns(const GroupEntry& group) const;

  /// Something has changed.
  void touch(Stage& stage);
  void advance(Stage& stage);
  void set_first_turn(GroupEntry& group, FirstTurn first_turn);
  void tell(const std::vector<TurnNews>& news);
  void end_waits(Stage& stage, const StageView& view);
  void carry_out(Stage& stage, const Switch& what);
  /// Others wait, so the groups that run are paused next.
  void foresee(const Stage& stage);
  Parts tags_of(const Switch& what) const;
  void switch_ended(Stage& stage, const Status& status);
  void account_time(Stage& stage, const StageView& view, Time now);
  void wake(Stage& stage, Time at);
  /// Once a second from now on, while there is a group in a stage.
  void poll();
  void poll_devices();
  void see(Stage& stage);
  void ask_for_work();
  void tell_reports(const Rank& rank, bool on);
  bool wants_reports(const GroupEntry& group) const;
  void start_ended(GroupId group);
  void let_start(GroupEntry& group);

  std::string name_for(const Caller& caller, GroupId id) const;
  bool may_see(const Caller& caller, GroupId id) const;
  void report(const Caller& caller, Stage& stage, v1::StageInfo& info);
  void report_last(const Caller& caller, const Stage& stage, v1::StageInfo& info) const;

  Node& node_;
  const OperationContext& context_;
  EventLoop& loop_;
  SessionServer& sessions_;
  EventHub& events_;
  Operations& operations_;
  StageWaits waits_;
  const StageViews views_;
  std::map<std::string, Stage, std::less<>> stages_;
  std::optional<EventLoop::TimerId> poll_timer_;
  bool poll_in_flight_ = false;
  Time poll_began_{};
  bool polled_after_failure_ = false;  // in this second
  bool closed_ = false;
  CallbackScope scope_;
};

}  // namespace amem
