// Stages: the stages of this node, between amemd's tables and operations and the GpuStages that
// decide.
//
// Hears where groups are, what their ranks report and what operators ask for; looks once a second
// at what groups need; and carries out switches as transactions of Operations.
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
#include "daemon/base/event_loop.h"
#include "daemon/memory/devices.h"
#include "daemon/node/events.h"
#include "daemon/node/node.h"
#include "daemon/operations/operations.h"
#include "daemon/owners/caller.h"
#include "daemon/sessions/session_server.h"
#include "daemon/settings/stage_settings.h"
#include "daemon/stages/gpu_stage.h"
#include "daemon/stages/starts.h"

namespace amem {

/// Of stages and this node's devices: kInvalidArgument: a device is not there or is in two stages,
/// or a rule makes no sense; the text names the setting.
Status check_stages(const std::vector<StageSettings>& settings, const Devices& devices);

class Stages final : public GpuStage::Host {
 public:
  /// Everything passed in outlives this object. REQUIRES: check_stages() accepts them, or open() is
  /// not called.
  Stages(const Means& means, SessionServer& sessions, EventHub& events, Operations& operations);
  ~Stages() override;
  Stages(const Stages&) = delete;

  /// Once, before any group.
  void open(const std::vector<StageSettings>& settings);
  /// Nothing is switched any more, and all leases that are waited for end.
  void close(const Status& why);

  // ---- groups and ranks ----
  /// How a group of that name, of that owner, begins whose first rank names this stage.
  struct Beginning {
    GroupId id = 0;       // that it has already; 0: none
    bool starts = false;  // with a first turn (FirstTurn)
    bool paused = false;  // it waits for that
  };
  Beginning begins(const std::shared_ptr<Account>& account, const std::string& name,
                   std::string_view stage);
  /// A rank has joined its group, or has come back: its Hello's stage, or none.
  void rank_joined(GroupEntry& group, const Rank& rank, std::string_view stage);
  void rank_gone(const GroupEntry& group, RankId rank);
  /// The group is as another broker has left it.
  void restored(GroupEntry& group);
  void state_changed(GroupId id);
  void finished(const GroupEntry& group, const Outcome& outcome);
  void ended(GroupId id);
  void work(const Rank& rank, const amem_v1_Work& work);

  // ---- starts ----
  /// A process of this caller is to start the group `name` in a stage: waits for the group's first
  /// turn. At once if the group is there, or if it needs none. `id`: unused. kNotFound: no such
  /// stage. kFailedPrecondition: the group can take no turns there. Else as Starts::wait().
  Starts::Number start(const Caller& caller, GroupId id, const std::string& name,
                       const std::string& stage, Duration timeout, Starts::Done done);
  void forget_start(Starts::Number number) { starts_.forget(number); }

  // ---- operators ----
  /// A stage switches one of these now.
  bool switches(const Operations::Groups& groups);
  /// Calls `go` when that switch has ended, before the stage begins another. kDeadlineExceeded: it
  /// has not within `timeout` (0: for ever).
  void after_switch(const Operations::Groups& groups, Duration timeout,
                    std::function<void(const Status&)> go);
  /// An operator pauses these groups. What their stages have paused stays so from now on, until
  /// somebody resumes it. Returns which of them are left to be paused.
  Operations::Groups take_paused(const Operations::Groups& groups);
  /// An operator has tried to resume these, and they are paused still: their stages resume them
  /// when it is their turn.
  void let_go(const Operations::Groups& groups);
  /// The stage that would get this group by let_go(); empty: none.
  std::string gets(const GroupEntry& group);

  struct Change {
    std::optional<std::string> stage;  // empty: none
    std::optional<std::uint32_t> weight;
    std::optional<std::int32_t> priority;
    std::optional<Duration> longest_wait;
    std::optional<std::vector<std::string>> leave_first;   // tags; empty: none
    std::optional<std::vector<std::string>> return_order;  // tags, in their order
  };
  /// kNotFound: no such stage. Else as Turns::set_terms(); then nothing changes.
  Status set(GroupEntry& group, const Change& change);
  /// As GpuStage::lease(). `timeout` 0: none; kDeadlineExceeded.
  using LeaseId = std::uint64_t;
  LeaseId lease(const GroupEntry& group, Duration timeout, GpuStage::OnLease done);
  void forget(LeaseId lease);
  Status yield(const GroupEntry& group);
  /// kNotFound: no such stage. Empty: all.
  Status report(const Caller& caller, const std::string& stage, v1::TurnsResponse& response);
  /// Figures for metrics are as of now.
  void settle();

 private:
  struct Waiting {  // a lease
    GpuStage* stage;
    std::uint64_t number = 0;
    std::optional<EventLoop::TimerId> timer = {};
    GpuStage::OnLease done;
  };

  struct Command {  // of an operator, while its groups are being switched
    GpuStage* stage;
    Operations::Groups groups;
    std::optional<EventLoop::TimerId> timer = {};
    std::function<void(const Status&)> go;
  };

  // GpuStage::Host
  void carry_out(GpuStage& stage, const StageSwitch& what) override;
  void wake(GpuStage& stage, Time at) override;
  std::optional<TurnNeeds> has_now(GroupId id) const override;
  void changed(GroupId group) override;
  void say(GpuStage& stage, GroupId group, const std::string& text, bool trouble) override;

  GpuStage* find(const std::string& name);
  GpuStage* stage_of(GroupId group);
  std::string names() const;
  void enter(GpuStage& stage, GroupEntry& group);
  std::string name_in(const GpuStage& stage, GroupId id, const Account& account,
                      const std::string& name) const;
  /// Whoever waits for first turns that have come.
  void answer_starts(const std::vector<GroupId>& groups);
  void carry_on(GpuStage& stage, const std::vector<std::uint64_t>& commands);
  std::string name_of(const Caller& caller, GroupId id);
  bool may_see(const Caller& caller, GroupId id);
  void tell_reports(const Rank& rank, bool on);
  void tell_reports(GroupId group, bool on);
  void ended(GpuStage& stage, const StageSwitch& what, const Status& status);
  void look();
  void look_at_needs();
  void measure(GpuStage& stage);
  /// Where the group is, and what of it is on the devices there.
  void place(GpuStage& stage, const GroupEntry& group);
  TurnNeeds rest_of(const GroupEntry& group) const;
  /// Of its allocations, or of those that count.
  TurnNeeds bytes_of(GroupId id, const std::function<bool(const Allocation&)>& counts = {}) const;
  std::vector<GpuStage::Part> parts_of(const GroupEntry& group) const;
  /// What of these parts there is still.
  Operations::Parts tags_of(const StageSwitch& what) const;
  void end_lease(LeaseId id, const Status& status);
  void report(const Caller& caller, GpuStage& stage, v1::StageInfo& info);

  Node& node_;
  const Means& means_;
  EventLoop& loop_;
  SessionServer& sessions_;
  EventHub& events_;
  Operations& operations_;
  std::map<std::string, std::unique_ptr<GpuStage>> stages_;
  std::map<const GpuStage*, EventLoop::TimerId> timers_;
  std::map<LeaseId, Waiting> leases_;
  LeaseId next_lease_ = 1;
  Starts starts_;
  std::map<std::uint64_t, Command> commands_;  // in the order in which they came
  std::uint64_t next_command_ = 1;
  std::optional<EventLoop::TimerId> looks_;
  bool looking_ = false;
  bool looked_ = false;
  bool looked_after_failure_ = false;  // in this second
  bool closed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace amem
