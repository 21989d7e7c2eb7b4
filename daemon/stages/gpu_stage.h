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

/// A group that begins in a stage whose rules say `starts_alone` has all its devices in its first
/// turn.
enum class FirstTurn : std::uint8_t {
  kOver,
  kOverByItself,  // GpuStage::asks_by_calls()
  kOfRanks,       // which wait for it, or have it
  kAnnounced,     // of a group that has no ranks yet: they come when they have it
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
    /// What the group has now, which it may have got since the last needs(). Nothing: that is all.
    virtual std::optional<TurnNeeds> has_now(GroupId) const { return std::nullopt; }
    /// leased(), starts() or asks_by_calls() of the group has changed, which the record must say.
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
  /// The group's ranks are to report Work.
  bool wants_reports(GroupId id) const {
    return wants_reports() || starts(id) || asks_by_calls(id);
  }

  // ---- groups ----
  /// `name`: for people, another one for each group. A group that cannot take turns, because it is
  /// too large or because longest waits could not be kept, is left alone until that has changed.
  void join(GroupId id, const std::string& name, const TurnWishes& wishes, Whereabouts where,
            bool leased, Time now, FirstTurn first = FirstTurn::kOver);
  /// Not OK: a group that joins now takes no turns, and why.
  Status can_start(const std::string& name, const TurnWishes& wishes) const;
  /// A group that was announced has ranks.
  void arrived(GroupId id, Time now);
  /// Its first turn has not ended.
  bool starts(GroupId id) const;
  /// With the policy lease: its first turn has ended without a yield, and it has got no lease
  /// since. It may be in the middle of its start, so a call that waits asks for its turn.
  bool asks_by_calls(GroupId id) const;
  /// It has ended, or has left the stage.
  void leave(GroupId id, Time now);
  bool has(GroupId id) const { return members_.contains(id); }
  /// Another group than this has that name.
  bool knows(const std::string& name, GroupId but) const {
    const GroupId id = id_of(name);
    return id != 0 && id != but;
  }
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
  /// The turn ends. Without effect if it has none. With every policy: a first turn ends.
  Status yield(GroupId id, Time now);
  bool leased(GroupId id) const;

  // ---- switches ----
  void tick(Time now);
  /// Nothing is decided on as long as it is held.
  void hold(bool held) { held_ = held; }
  /// `status`: of the transaction. REQUIRES: place() has been told where each of its groups is.
  void switched(std::uint64_t number, const Status& status, Time now);
  bool switches(GroupId id) const;
  /// All leases that are waited for end with this.
  void close(const Status& why);

  // ---- for reports ----
  struct GroupView {
    GroupId id = 0;
    // "starts" (its first turn), "runs", "waits", "idle", "comes", "leaves", "paused", "apart"
    std::string what;
    Duration since{};  // it waits, or runs, for so long
    std::string call;  // that waits
    bool leased = false;
    TurnWishes wishes;
    std::uint64_t needs = 0;  // of the device on which it needs most
    std::uint64_t stays = 0;  // of the device on which most of it stays while it is paused
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
    bool starts = false;             // its first turn has not ended
    bool by_calls = false;           // asks_by_calls()
    bool there = true;               // it has ranks
    std::optional<Time> began = {};  // its first turn
    Time busy{};                     // in it: when it last had work
  };

  Member* find(GroupId id);
  GroupId id_of(const std::string& name) const;
  bool wants_reports() const { return rules_.policy != TurnPolicy::kLease; }
  TurnTerms terms_of(const Member& m) const;
  void admit(GroupId id, Member& m, Time now);
  void refuse(GroupId id, Member& m, const Status& why, Time now);
  void sync(Member& m, Time now);
  /// What its ranks and those who lease it want.
  bool asks(const Member& m) const;
  void ask_again(Member& m, Time now);
  void still_working(Time now);
  bool at_work(const Member& m) const;  // in its first turn
  Time first_turn_ends(const Member& m) const;
  void end_first_turn(GroupId id, Member& m, Time now);
  void look_at_first_turns(Time now);
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
  bool held_ = false;
  std::optional<Time> settled_;
};

}  // namespace amem
