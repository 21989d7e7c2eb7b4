// Which groups of a stage leave and which come in next, as a function of what amemd sees.
//
// The caller builds a StageView whenever something has changed or wakeup() is due, and calls, in
// this order: look(), first_turns() (whose results it applies to its tables and to the view),
// decide(). It carries out the Switch as one transaction, and calls switched() with a new view when
// that has ended. One switch is under way at a time.
//
// Groups that fit beside each other run together. A group leaves only for another one that waits,
// or because needs have outgrown the stage. Where it is enough, only the first of its parts leave;
// what remains of a group that is out leaves when a group that asks needs the space, before any
// group that runs. What cannot leave stays the group's own, in or out.
//
// Who waits comes in by one queue. A group without a longest wait stands in it by when it asked,
// and as if it had asked earlier by the rules' `ageing` for each of its priority: so whoever waits
// comes before all that ask late enough, whatever their priority. Groups with a longest wait come
// before these, in the order in which they asked. But of the others the first one has a place among
// them, too, by when the last such one came in; so nobody starves. In `slice` all stand in the
// queue as they asked, and their weights say how long each stays. What an owner has set moves only
// the owner's own groups, among the places that these have; what an operator has set moves all.
//
// A group that could not come in if all others had left is not in the queue, so it stops nobody.
// The first of the queue waits until groups that may leave have what it needs. Meanwhile one that
// stands behind it comes in if all that stand before it could still come in beside it. On this
// rests worst_wait() (daemon/turns/longest_wait.h).
//
// Pure: no I/O, time comes in. Not synchronised.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/turns/view.h"

namespace amem {

/// For the log and for whoever watches the group.
struct TurnNews {
  GroupId group = 0;
  std::string text;
  bool trouble = false;  // an operator should look at it
};

/// `memory` follows what has changed. Groups that cannot take turns are told apart here: one that
/// is too large, or one with which its own or another's longest wait could not be kept.
std::vector<TurnNews> look(const StageView& view, StageMemory& memory, Time now);

/// The first turns that change now, and what they become. REQUIRES: look().
std::vector<std::pair<GroupId, FirstTurn>> first_turns(const StageView& view,
                                                       const StageMemory& memory, Time now);

/// Returns what becomes of a first turn that ends on its own, or by who has paused the group.
FirstTurn after_first_turn(const TurnRules& rules, const GroupView& group);

/// Returns the switch that must begin now, if any. REQUIRES: look().
std::optional<Switch> decide(const StageView& view, StageMemory& memory, Time now);

/// The switch under way has ended; `view` is as it has left the groups.
void switched(const StageView& view, StageMemory& memory, const Status& status, Time now);

/// When decide() or first_turns() may have something new, if nothing happens until then.
Time wakeup(const StageView& view, const StageMemory& memory, Time now);

/// Not OK: a group that joins now takes no turns, and why.
Status can_join(const StageView& view, const StageMemory& memory, const GroupView& group);
/// Not OK: with these wishes of the group a longest wait could not be promised, or they are wrong.
Status can_wish(const StageView& view, const StageMemory& memory, GroupId group,
                const TurnWishes& wishes);

/// It takes turns, wants to run, and does not.
bool waits(const StageMemory& memory, const GroupView& group);
/// Memory is on its way, by a switch or by somebody else's operation, so it would be counted twice,
/// or not at all.
bool moving(const StageView& view, const StageMemory& memory);
/// No memory is on its way, and what others have is known: what can come in can be told.
bool is_steady(const StageView& view, const StageMemory& memory);
/// Returns why each group that waits does so. REQUIRES: look().
std::map<GroupId, Hindrance> hindrances(const StageView& view, const StageMemory& memory, Time now);
/// When its first turn ends if nothing happens, for people. REQUIRES: it has begun.
std::string first_turn_end(const StageView& view, const StageMemory& memory, GroupId group,
                           Time now);
/// For people. `name`: what a group is called.
std::string describe(const StageView& view, const StageMemory& memory, GroupId group,
                     const Hindrance& hindrance, const std::function<std::string(GroupId)>& name,
                     Time now);

}  // namespace amem
