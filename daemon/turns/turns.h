// Turns: the groups of one stage take turns on its devices, by its rules.
//
// Events go in; decide() says which groups leave and which come in next, together, as one switch.
// One switch is under way at a time, until switch_done() or switch_failed(). Groups that fit beside
// each other run together. A group leaves only for another one that waits, or because needs have
// outgrown the stage. Where it is enough, only the first of its parts leave; what stays of a group
// that is out leaves when a group that asks needs the space, before any group that runs.
//
// Who waits comes in by one queue. A group without a longest wait stands in it by when it asked,
// and as if it had asked earlier by the rules' `ageing` for each of its priority: so whoever waits
// comes before all that ask late enough, whatever their priority. Groups with a longest wait come
// before these, in the order in which they asked. But of the others the first one has a place among
// them, too, by when the last such one came in; so nobody starves. In `slice` all stand in the
// queue as they asked, and their weights say how long each stays.
//
// The first of the queue waits until groups that may leave have what it needs. Meanwhile one that
// stands behind it comes in if all that stand before it could still come in beside it. On this
// rests worst_wait() (daemon/turns/longest_wait.h).
//
// Pure: no I/O, time comes in. A time before an earlier one counts as that. Not synchronised.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/turns/terms.h"

namespace amem {

/// Groups that leave and groups that come in, together.
struct TurnSwitch {
  std::uint64_t number = 0;  // of this object's switches
  std::vector<std::string> out;
  std::vector<std::string> in;
  std::string why;                                // for people
  std::map<std::string, std::size_t> parts = {};  // so many of a group's parts leave; else it does
};

class Turns {
 public:
  /// REQUIRES: check_stage() accepts them.
  Turns(const TurnRules& rules, std::vector<StageDevice> devices);

  /// Whether add() would take the group now.
  Status can_admit(const TurnTerms& terms) const;
  /// A group joins, running or paused. If it runs, its turn begins, unless others wait already:
  /// then it may leave at once.
  /// kInvalidArgument, kOutOfRange: check_terms(). kAlreadyExists. kResourceExhausted: too many
  /// groups. kFailedPrecondition: check_longest_waits(), with this group. Then nothing changes.
  Status add(const TurnTerms& terms, bool running, Time at);
  /// It has ended, and its memory is free. Unknown groups have no effect, here and below.
  void remove(const std::string& group, Time at);

  /// It needs other bytes. kInvalidArgument, kOutOfRange: check_needs(); then nothing changes.
  /// kFailedPrecondition: it takes effect, but a longest wait is not promised any more.
  Status set_needs(const std::string& group, const TurnNeeds& needs, Time at);
  /// Its first turn has ended (TurnTerms::starts). Errors as for set_needs(), and what it needs has
  /// changed only without one.
  Status started(const std::string& group, const TurnNeeds& needs, Time at);
  /// What of its needs may leave first. kFailedPrecondition: as for set_needs().
  Status set_parts(const std::string& group, std::vector<TurnNeeds> parts, Time at);
  /// It is out, or about to be, and has this on the devices still.
  void set_stays(const std::string& group, const TurnNeeds& stays, Time at);
  /// Its switches have been measured. Errors as for set_needs().
  Status set_costs(const std::string& group, Duration out, Duration in, Time at);

  /// Somebody has changed these. kInvalidArgument: check_terms(). kFailedPrecondition: with them
  /// longest waits could not be promised. Then nothing changes.
  Status set_terms(const std::string& group, std::uint32_t weight, std::int32_t priority,
                   Duration longest_wait, Time at);
  /// Processes that take no turns have so much of a GPU now. It stops nobody who runs. If it has
  /// changed by more than the margin, what failed is tried again at once.
  void set_taken(const DeviceUuid& device, std::uint64_t bytes, Time at);

  /// lease: it asks for its turn. Otherwise: a call of it waits at the gate.
  void wants(const std::string& group, Time at);
  /// lease: it yields. Otherwise: no call waits any more, and nothing is left on the devices.
  void wants_nothing(const std::string& group, Time at);
  /// A call has passed the gate, or there is work on the devices still. Without effect on a lease.
  void worked(const std::string& group, Time at);

  /// An operator has paused it: it is left alone, and its memory is free.
  void paused_by_operator(const std::string& group, Time at);
  /// The operator lets go of it. Paused, it waits from then on if it wants to run; or it runs, as
  /// one that joins.
  void released(const std::string& group, bool running, Time at);

  /// What is to be switched now, if anything.
  std::optional<TurnSwitch> decide(Time now);
  /// Another number than that of the switch under way has no effect.
  void switch_done(std::uint64_t number, Time at);
  /// `running`: those of its groups that run now; the others are paused. It is tried again later.
  void switch_failed(std::uint64_t number, const std::vector<std::string>& running, Time at);

  /// When decide() may have something new, if nothing happens until then.
  Time wakeup() const;

  bool switching() const { return under_way_.has_value(); }
  bool has(const std::string& group) const { return members_.contains(group); }
  /// Runs, and neither comes in nor leaves.
  bool runs(const std::string& group) const;
  /// Has asked and does not run.
  bool waits(const std::string& group) const;
  /// Whether all longest waits are kept.
  Status promised() const;

 private:
  enum class Place : std::uint8_t { kOut, kComing, kIn, kLeaving };
  struct Member {
    TurnTerms terms;
    std::uint64_t joined = 0;  // for the order of what is equal otherwise
    Place place = Place::kOut;
    TurnNeeds stays = {};  // on the devices while it is out
    bool of_operator = false;
    bool wants = false;
    Time wanted{};                  // since when, if it wants
    std::optional<Time> came_in{};  // nothing: it joined running, and others waited
    std::optional<Time> turn{};     // began; nothing: it has none
    Time worked{};
    std::uint32_t failures = 0;  // in a row
    Time not_before{};           // after a failure
  };

  Time advance(Time at);
  Member* find(const std::string& group);
  const Member* find(const std::string& group) const;
  std::vector<TurnTerms> all_terms() const;

  bool present(const Member& m) const;   // its memory is on the devices
  bool has_rest(const Member& m) const;  // it is out, and some of its memory is on the devices
  bool idle(const Member& m, Time now) const;
  Time idle_from(const Member& m) const;  // if nothing happens; kNever
  bool may_leave(const Member& m, Time now) const;
  Time leaves_from(const Member& m) const;  // if nothing happens; kNever
  Time asked(const Member& m) const;        // REQUIRES: it wants
  bool asks(const Member& m, Time now) const;
  bool anybody_waits() const;
  bool promised_first(const Member& m) const;
  void begin_turn_if_idle(Member& m, Time now);
  void join(Member& m, bool waited_for, Time now);  // running

  /// All that ask now, the first one first.
  std::vector<const Member*> queue(Time now) const;
  TurnLoad load() const;  // of all that are on the devices
  /// The groups that leave, and for some of them how many parts leave without the rest.
  struct Leaving {
    std::vector<const Member*> all;
    std::map<const Member*, std::size_t> parts = {};
  };
  /// What such a group has on the devices.
  TurnNeeds on_devices(const Member& m, const Leaving& leaving) const;
  /// Makes more leave so that `needs` fit into `load`. False: it is not enough, and nothing has
  /// changed. `coming`: what they have on the devices is counted among what they need.
  bool make_space(TurnLoad& load, const TurnNeeds& needs, Leaving& leaving,
                  const std::vector<const Member*>& coming, Time now) const;
  std::vector<const Member*> too_many(Time now) const;
  /// Whether `m` may come in before those that stand before it.
  bool may_pass(const Member& m, const std::vector<const Member*>& before,
                const std::vector<const Member*>& coming) const;
  std::string reason(const std::vector<const Member*>& out, const std::vector<const Member*>& in,
                     Time now) const;
  TurnSwitch begin(const Leaving& out, const std::vector<const Member*>& in, std::string why,
                   Time now);
  void arrive(Member& m, Time at);
  void failed(Member& m, Time at);

  TurnRules rules_;
  std::vector<StageDevice> devices_;
  std::map<std::string, Member> members_;
  std::optional<TurnSwitch> under_way_;
  std::uint64_t switches_ = 0;
  std::uint64_t joined_ = 0;
  Time now_{};
  Time last_of_others_{};  // when the first of those without a longest wait last came in
};

}  // namespace amem
