// Cut: takes the consistent cut of a quiesce (docs/protocol.md, "Pause", point 2).
//
// With the gates simply shut, one rank may be inside a collective that another has not launched
// yet, and its device never becomes idle. From what the ranks report, Cut decides who lets one
// waiting caller through, so that the cut moves forward only as far as it must, and when it is
// taken.
//
// A report is old when it arrives: of ranks that end one collective together, some say that they
// wait for the next launch before the others say that they are idle. To permit the waiting ones
// because of the idle ones would begin the next collective, and so on without end. So only a device
// that has been busy ever since the gates shut makes others move at once; one that was idle, or was
// permitted, is given a moment to become idle on its own, and twice as long each time that it was
// not enough. One that outlasts its moment is stuck: it needs the others, perhaps many launches of
// theirs, and until it has been idle each of those comes after a far shorter wait.
//
// When all are busy, ranks wait for one another: several threads launch collectives on streams of
// their own, and each rank has come further with some of them. No rank can tell which of its
// callers the others wait for. If all are let through in turn, the distances between the ranks
// never change. So one device is pushed: of its callers those pass whose stream is idle, and nobody
// else, until each of its streams waits for the others. Then the others, idle, need one call of
// each of their threads, and those come in turn.
//
// Pure: no I/O, time comes in. Not synchronised; one Cut serves one epoch of one group.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/protocol.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"

namespace amem {

/// What a rank says about itself while its gate is shut.
struct CutReport {
  struct Device {
    DeviceUuid device;
    bool busy = false;          // work on it, or a call that passed the gate has not returned
    std::uint32_t waiting = 0;  // callers at the gate with this device current
    std::uint32_t ready = 0;    // of these, the ones whose work could begin at once
    std::string error = {};     // its driver has refused to wait for it: busy, and why
  };
  std::uint32_t permits = 0;   // Permits of this epoch that it has used up
  std::uint32_t captures = 0;  // stream captures under way
  std::vector<Device> devices;
};

class Cut {
 public:
  struct Permit {
    RankId rank = 0;
    DeviceUuid device;
    bool in_turn = false;  // whoever has waited longest, not first those whose stream is idle
    friend bool operator==(const Permit&, const Permit&) = default;
  };

  Cut(const std::vector<RankId>& ranks, Duration stall, Time now);

  /// A rank has reported; one that is not part of the cut is ignored.
  void report(RankId rank, CutReport report, Time now);
  /// The rank has gone and counts no more.
  void forget(RankId rank);

  /// Every rank is quiet, by a report that knows of every Permit it was sent.
  bool taken() const;
  std::size_t quiet_ranks() const;

  /// The Permits to send now; counts them as sent.
  std::vector<Permit> decide(Time now);
  /// Somebody else has decided on a Permit to this rank. Where others decide, decide() is not
  /// called.
  void sent(RankId rank);
  /// When decide() is worth calling again with no further report; kNever: it is not. Never a time
  /// at which it would leave everything as it is: then the next one is later.
  Time next_decision() const;

  /// The ranks that are not quiet, each with why: "has work running on GPU-…".
  std::map<RankId, std::string> laggards() const;

 private:
  friend class ModelPeek;  // of the tests: says in what state it is
  struct Rank {
    bool reported = false;
    std::uint32_t sent = 0;
    CutReport last;
    std::set<DeviceUuid> moved;  // devices that were permitted, or idle at some time
    std::set<DeviceUuid> stuck;  // of these, busy through a whole patience and ever since

    /// The report describes the rank after all Permits it was sent.
    bool current() const { return reported && last.permits == sent; }
    bool busy() const;
    bool quiet() const { return current() && !busy(); }
  };

  /// condition(rank, device) is true of a device of a rank whose report is current.
  template <class Condition>
  bool any_device(Condition condition) const;
  bool somebody_busy() const;
  /// Some device still does what was launched before the gates shut.
  bool old_work() const;
  /// Some device is known to wait for others.
  bool stuck_work() const;
  void mark_stuck();
  /// How long nothing must have changed before callers are permitted, when work of our own permits
  /// is the reason.
  Duration quiet_time() const;
  /// The same for callers of idle devices, whatever the reason.
  Duration needed_quiet() const { return old_work() ? Duration::zero() : quiet_time(); }
  /// Some permit could be sent to an idle device.
  bool idle_waiters() const;
  void choose_pushed();
  /// The device that is pushed has something more that could begin; REQUIRES: one is.
  bool can_push_on() const;
  /// Ends the push when it has come as far as it goes.
  void look_at_pushed();

  Duration stall_;
  Duration patience_;  // how long nothing must change before work of our own permits is a reason
  int expiries_ = 0;   // how often patience_ has ended
  std::optional<Permit> pushed_;
  std::uint32_t pushes_left_ = 0;
  std::minstd_rand random_;  // the same sequence every time
  Time last_change_;
  std::map<RankId, Rank> ranks_;
};

}  // namespace amem
