// How long a group of a stage may have to wait, whatever the others do.
//
// It counts every group at its worst: a switch is under way when the group asks; then who runs
// keeps its turn to the limit; then all come that may come first (daemon/turns/decide.h says who),
// each to its limit, each after a switch. Not counted: switches that fail, needs that outgrow the
// stage, and an operator's own pauses. A longest wait that an owner has set counts the owner's
// groups only.
//
// Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/turns/view.h"

namespace amem {

/// A group that takes turns, and what its switches cost.
struct TurnTaker {
  const GroupView* group = nullptr;
  Duration cost_out{};
  Duration cost_in{};
  Duration residency{};  // it stays for so long
};
/// Without a setting the residency is four times what it costs to leave and to return: two groups
/// that take turns all the time spend a fifth of it on switches.
TurnTaker terms_of(const GroupView& group, const Costs& out, const Costs& in);

/// After so long of a turn a group has to leave if another one waits; nothing: it need not.
std::optional<Duration> turn_limit(const TurnRules& rules, std::uint32_t weight,
                                   Duration residency);

struct WorstWait {
  std::optional<Duration> total;  // from asking to running; nothing: there is no limit
  Duration in_switches{};
  Duration in_turns{};                 // of others
  const GroupView* longest = nullptr;  // whose turn is the longest of these; null: there is none
};

/// Returns the worst wait of terms[index].
WorstWait worst_wait(const StageView& view, const std::vector<TurnTaker>& terms, std::size_t index);

/// kFailedPrecondition: a longest wait cannot be promised; the text says whose, how long it may
/// take, and what to change. `counts_against`: only those that hold against this group; null: all.
/// `whose`: is told which, if not null.
Status check_longest_waits(const StageView& view, const std::vector<TurnTaker>& terms,
                           const GroupView* counts_against = nullptr, GroupId* whose = nullptr);

}  // namespace amem
