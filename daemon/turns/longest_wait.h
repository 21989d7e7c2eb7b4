// How long a group of a stage may have to wait, whatever the others do.
//
// It counts every group at its worst: a switch is under way when the group asks; then who runs
// keeps its turn as long as it may; then all come that may come first (daemon/turns/turns.h says
// who), each for as long as it may, each after a switch. Not counted: switches that fail, needs
// that outgrow the stage, and an operator's own pauses.
//
// Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/turns/terms.h"

namespace amem {

struct WorstWait {
  std::optional<Duration> total;  // from asking to running; nothing: there is no limit
  Duration in_switches{};
  Duration in_turns{};  // of others
  std::string longest;  // the group whose turn is the longest of these; empty: there is none
};

/// Of terms[index]. REQUIRES: check_terms() accepts each.
WorstWait worst_wait(const TurnRules& rules, const std::vector<StageDevice>& devices,
                     const std::vector<TurnTerms>& terms, std::size_t index);

/// kFailedPrecondition: a longest wait cannot be promised; the text says whose, how long it may
/// take, and what to change.
Status check_longest_waits(const TurnRules& rules, const std::vector<StageDevice>& devices,
                           const std::vector<TurnTerms>& terms);

}  // namespace amem
