// GpuStage: one stage of this node, and its groups, from what they report to the switches that
// follow from it.
//
// The decisions are Turns' (daemon/turns). This class keeps what Turns does not: which ranks wait,
// who has asked for a lease, what operators have done to a group, and what has been measured. Its
// host carries out what it wants.
//
// Time comes in, and the host does all I/O, so tests play both. Not synchronised.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/node/stage_figures.h"
#include "daemon/phases/task.h"
#include "daemon/turns/turns.h"

namespace amem {

/// Where a group is, as its stage sees it.
enum class Whereabouts : std::uint8_t {
  kRuns,
  kPausedByStage,
  kPausedByOperator,  // or by its own ranks: nobody but who has paused it resumes it
  kMoves,             // an operation is under way on all of it
};

/// A switch that is to be one transaction.
struct StageSwitch {
  std::uint64_t number = 0;
  std::vector<GroupId> out;
  std::vector<GroupId> in;
  std::string why;                                         // for people
  std::map<GroupId, std::vector<std::string>> parts = {};  // only these tags of it leave
};

class GpuStage {
 public:
  /// Is told how a lease went, once. Must not call the stage.
  using OnLease = std::function<void(const Status&)>;

  /// What a stage asks of its surroundings. Must not call the stage.
  class Host {
   public:
    virtual ~Host() = default;
    /// Answered by switched(), in a later turn of the loop.
    virtual void carry_out(GpuStage& stage, const StageSwitch& what) = 0;
    /// tick() is due then; kNever: not at all. Replaces what was said before.
    virtual void wake(GpuStage& stage, Time at) = 0;
    /// What is to be on record of it has changed: leased().
    virtual void changed(GroupId group) = 0;
    /// For people; `trouble`: something that an operator should look at.
    virtual void say(GpuStage& stage, GroupId group, const std::string& text, bool trouble) = 0;
  };

  /// REQUIRES: check_stage() accepts them. `min_residency`: of every group; nothing: by costs.
  GpuStage(Host& host, std::string name, const TurnRules& rules, std::vector<StageDevice> devices,
           std::optional<Duration> min_residency, StageFigures& figures);
  GpuStage(const GpuStage&) = delete;

  const std::string& name() const { return name_; }
  const TurnRules& rules() const { return rules_; }
  const std::vector<StageDevice>& devices() const { return devices_; }
  /// Its groups' ranks are to report Work.
  bool wants_reports() const { return rules_.policy != TurnPolicy::kLease; }

  // ---- groups ----
  /// `name`: for people, another one for each group. A group that cannot take turns, because it is
  /// too large or because longest waits could not be kept, is left alone until that has changed.
  void join(GroupId id, const std::string& name, const TurnWishes& wishes, Whereabouts where,
            bool leased, Time now);
  /// It has ended, or has left the stage.
  void leave(GroupId id, Time now);
  bool has(GroupId id) const { return members_.contains(id); }
  /// It has got somewhere, whoever made it do so.
  void place(GroupId id, Whereabouts where, Time now);
  /// What it needs on the devices while it runs.
  void needs(GroupId id, const TurnNeeds& needs, Time now);
  /// Of this, what leaves first: its tags, and their bytes that can leave.
  struct Part {
    std::string tag;
    TurnNeeds needs;
    friend bool operator==(const Part&, const Part&) = default;
  };
  void parts(GroupId id, std::vector<Part> parts, Time now);
  /// Its stage has paused it, and this of it is on the devices still.
  void stays(GroupId id, const TurnNeeds& stays, Time now);
  /// Others have so much of a device.
  void taken(const DeviceUuid& device, std::uint64_t bytes, Time now);
  /// An operation on all of it has succeeded. `whole`: it is not one on a part, or on the rest.
  void measured(GroupId id, Operation op, Duration time, bool whole, Time now);
  /// As Turns::set_terms().
  Status set_wishes(GroupId id, const TurnWishes& wishes, Time now);

  // ---- what its ranks report ----
  struct Report {
    bool waiting = false;
    std::string call;
    bool worked = false;
  };
  void report(GroupId id, RankId rank, const Report& report, Time now);
  void rank_gone(GroupId id, RankId rank, Time now);

  // ---- leases ----
  /// `done` is called when the group has its turn, or with what went wrong: kFailedPrecondition:
  /// the policy is another one, or the group takes no turns; kAborted: it has ended. Returns a
  /// number for forget(); 0: `done` has been called.
  std::uint64_t lease(GroupId id, OnLease done, Time now);
  /// Nobody waits for this lease any more. If nobody else does, the group asks for nothing.
  void forget(std::uint64_t lease, Time now);
  /// The turn ends. Without effect if it has none.
  Status yield(GroupId id, Time now);
  bool leased(GroupId id) const;

  // ---- switches ----
  void tick(Time now);
  /// `status`: of the transaction. REQUIRES: place() has been told where each of its groups is.
  void switched(std::uint64_t number, const Status& status, Time now);
  bool switches(GroupId id) const;
  /// All leases that are waited for end with this.
  void close(const Status& why);

  // ---- for reports ----
  struct GroupView {
    GroupId id = 0;
    std::string what;  // "runs", "waits", "idle", "comes", "leaves", "paused", "apart"
    Duration since{};  // it waits, or runs, for so long
    std::string call;  // that waits
    bool leased = false;
    TurnWishes wishes;
    std::uint64_t needs = 0;  // of the device on which it needs most
    std::uint64_t stays = 0;  // likewise, of what it has there while it is paused
    std::string refusal;      // why it takes no turns
  };
  struct LastSwitch {
    StageSwitch what;
    std::chrono::system_clock::time_point at;  // it began
    Duration took{};                           // 0: it is under way
    Status status;
  };
  std::vector<GroupView> groups(Time now) const;
  const std::optional<LastSwitch>& last() const { return last_; }
  bool switching() const { return under_way_.has_value(); }
  /// Counts what has passed.
  void settle(Time now);

 private:
  struct Member {
    std::string name;
    TurnWishes wishes;
    TurnNeeds needs = {};
    std::vector<Part> parts = {};
    TurnNeeds stays = {};
    Whereabouts where = Whereabouts::kRuns;
    bool of_operator = false;  // Turns has been told so
    bool admitted = false;     // Turns has it
    std::string refusal = {};  // else why
    std::map<RankId, Report> ranks = {};
    bool leased = false;  // it has asked for a turn, and has had it
    std::map<std::uint64_t, OnLease> waiters = {};
    // The last costs. Those of parts count only while nothing else is known: a longest wait is
    // promised with what the whole group costs.
    struct Costs {
      std::deque<Duration> whole = {};
      std::deque<Duration> parts = {};
      Duration worst() const;
    };
    Costs outs = {};
    Costs ins = {};
    std::optional<Time> waits = {};  // since when
    std::optional<Time> runs = {};
  };

  Member* find(GroupId id);
  GroupId id_of(const std::string& name) const;
  void admit(GroupId id, Member& m, Time now);
  void refuse(GroupId id, Member& m, const Status& why, Time now);
  void sync(Member& m, Time now);
  void ask_again(Member& m, Time now);
  void still_working(Time now);
  bool in_switch(GroupId id) const;
  /// Decides, and says what is new.
  void step(Time now);
  void grant();

  Host& host_;
  const std::string name_;
  const TurnRules rules_;
  const std::vector<StageDevice> devices_;
  const std::optional<Duration> min_residency_;
  StageFigures& figures_;
  Turns turns_;
  std::map<GroupId, Member> members_;
  std::optional<StageSwitch> under_way_;
  Time switch_began_{};
  std::optional<LastSwitch> last_;
  std::uint64_t leases_ = 0;
  std::optional<Time> settled_;
};

}  // namespace amem
