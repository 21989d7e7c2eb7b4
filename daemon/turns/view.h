// What a decision about turns is made from: StageView, what amemd's tables say now, and
// StageMemory, what cannot be seen in them. And what comes out: a Switch, and why a group waits.
//
// Plain values. Bytes and flags "by device" are in the order of StageView::devices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/turns/terms.h"

namespace amem {

/// Bytes by device.
using DeviceBytes = std::vector<std::uint64_t>;

/// What a group has, and needs, on one device. Bytes.
struct Footprint {
  std::uint64_t needs = 0;  // while it runs: all of its allocations
  std::uint64_t stays = 0;  // of these, cannot leave: registered with a NIC, open in guests
  std::uint64_t remainder =
      0;                      // it is paused by its stage, and this is on the device and can leave
  std::uint64_t restore = 0;  // what its processes need besides, to be restored from a deep pause
  bool used = false;          // the group uses the device, also without bytes
  friend bool operator==(const Footprint&, const Footprint&) = default;
};

enum class Presence : std::uint8_t {
  kIn,              // it runs
  kOut,             // its stage has paused it
  kPausedByOthers,  // an operator has, or its own ranks: nobody else resumes it
  // An operation is under way on all of it, its stage's or somebody else's.
  kLeaves,
  kComes,
};

constexpr bool moves(Presence presence) {
  return presence == Presence::kLeaves || presence == Presence::kComes;
}

/// The first turn of a group is of all devices that its processes see.
enum class FirstTurn : std::uint8_t {
  kOver,
  kDue,          // the group waits for it, or has it
  kLapsed,       // it ended before a rank came. The first call of a rank that waits makes it due
  kEndedUnasked  // lease: it ended without a yield, and there was no lease since. The group may be
                 // in the middle of its start, so a call that waits asks for its turn
};

struct GroupView {
  /// What leaves first: the bytes with one tag that can leave, by device.
  struct Part {
    std::string tag;
    DeviceBytes bytes;
    friend bool operator==(const Part&, const Part&) = default;
  };

  GroupId id = 0;
  std::string name;         // for people
  std::uint64_t owner = 0;  // the same number for all groups of one owner
  Presence presence = Presence::kIn;
  FirstTurn first_turn = FirstTurn::kOver;
  bool has_ranks = true;
  TurnWishes wishes = {};
  std::optional<Duration> min_residency = {};  // it stays for so long; nothing: by costs
  std::vector<Footprint> on = {};              // by device
  std::vector<Part> parts = {};                // in the order in which they leave
  std::string refusal = {};                    // not empty: why it cannot take turns
  std::string missing = {};   // what it waits for: until then it can neither leave nor come
  bool waiting = false;       // a call waits at the gate
  std::string call = {};      // that call
  bool working = false;       // its ranks have work
  Time worked{};              // when they last had
  bool leased = false;        // it has asked for a lease, has had it, and has not yielded
  bool lease_wanted = false;  // somebody waits for its lease
};

struct StageView {
  std::string name;
  const TurnRules& rules;
  const std::vector<StageDevice>& devices;
  DeviceBytes taken;              // by others than the groups that take turns
  std::vector<GroupView> groups;  // by id
  bool seen = true;  // `taken` has been looked at since memory of the stage was last on its way

  /// Null: it is not of the stage.
  const GroupView* find(GroupId id) const;
};

/// Groups that leave and groups that come in, as one transaction.
struct Switch {
  std::uint64_t number = 0;
  std::vector<GroupId> out;
  std::vector<GroupId> in;
  std::string why;                                         // for people
  std::map<GroupId, std::vector<std::string>> parts = {};  // only these tags of the group leave
  bool several_owners = false;                             // have these groups

  bool leaves(GroupId id) const;
  bool comes(GroupId id) const;
  bool has(GroupId id) const { return leaves(id) || comes(id); }
};

/// The last costs of switches, and the worst of them. Costs of parts count only while nothing else
/// is known: a longest wait is promised with what the whole group costs.
class Costs {
 public:
  void add(Duration cost, bool whole);
  Duration worst() const;

 private:
  std::deque<Duration> whole_;
  std::deque<Duration> parts_;
};

struct GroupMemory {
  std::uint64_t joined = 0;             // for the order of what is equal otherwise
  bool admitted = false;                // it takes turns
  std::string refusal = {};             // else why not
  Presence presence = Presence::kIn;    // when last looked at
  bool wants = false;                   // when last looked at
  bool has_remainder = false;           // when last looked at: it is out, and some of its memory is
                                        // not
  std::optional<Time> asked = {};       // it wants and is out since then
  std::optional<Time> came_in = {};     // nothing: it came without a switch, and others waited
  std::optional<Time> turn = {};        // began; nothing: it has none
  Time worked{};                        // it last had work
  std::uint32_t failures = 0;           // of switches, in a row
  std::string failure = {};             // the last one
  bool failed_with_others = false;      // the last one was of several owners
  Time not_before{};                    // it is left alone until then, after a failure
  bool unfit = false;                   // it waits, and could not come in if all others had left
  std::optional<Time> first_turn = {};  // its first turn began
  Time busy{};                          // in it: it last had work
  Costs out = {};
  Costs in = {};
};

struct StageMemory {
  /// A switch of the group is under way.
  bool is_switching(GroupId id) const { return under_way && under_way->has(id); }
  /// Null: it takes no turns.
  const GroupMemory* taker(GroupId id) const;

  std::map<GroupId, GroupMemory> groups;
  std::uint64_t joined = 0;
  std::uint64_t switches = 0;
  std::optional<Switch> under_way;
  /// When the first of the groups without a longest wait last came in; by owner, 0: of all.
  std::map<std::uint64_t, Time> last_of_others;
  /// When a group without ranks last got its first turn, by owner.
  std::map<std::uint64_t, Time> last_start;
  DeviceBytes taken;      // when last looked at
  bool promised = true;   // when last looked at: all longest waits are kept
  std::size_t terms = 0;  // a hash of what this was told by
};

/// Why a group that wants its turn has not got it.
struct Hindrance {
  enum class Kind : std::uint8_t {
    kNone,
    kMissing,     // ranks of it have not reconnected
    kSwitching,   // a switch is under way
    kGrace,       // its call has not waited for long enough
    kFailed,      // its last switch failed
    kDoesNotFit,  // it could not come in if all others of the stage had left
    kRuns,        // `others` run, and may not leave yet
    kBefore,      // `others` stand before it in the queue
  };

  Kind kind = Kind::kNone;
  std::vector<GroupId> others = {};
  std::size_t device = 0;     // kDoesNotFit
  std::uint64_t needs = 0;    // of that device, bytes
  std::uint64_t at_most = 0;  // can become free there
  std::uint64_t stays = 0;    // the other groups keep there
  std::uint64_t taken = 0;    // others have there
  Time until = kNever;        // kGrace, kFailed, kRuns: if nothing happens
};

}  // namespace amem
