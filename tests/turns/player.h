// Plays a trace: groups work while they run and wait at their gates while they do not, switches
// take their time, and whoever decides is told what amemd would be told. Checks what must hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/turns/trace.h"
#include "tests/unit/fixtures/turns_by_events.h"

namespace amem::turn_traces {

#ifndef AMEM_TURNS_UNDER_TEST  // tests/turns/before plays two of them
using TurnsUnderTest = Turns;
#endif

/// Another one than Turns that decides who leaves; it is told the future.
class Oracle {
 public:
  virtual ~Oracle() = default;
  struct Group {
    bool runs = false;
    bool works = false;              // now
    std::optional<Time> asked = {};  // waits since
    Time came_in{};
    Time worked{};  // last
    Time next_use = kNever;
  };
  virtual std::optional<TurnSwitch> decide(const std::vector<Group>& groups, Time now) = 0;
  virtual Time wakeup(const std::vector<Group>& groups, Time now) const = 0;
};

struct Played {
  std::string broken;         // what does not hold; empty: all does
  std::uint64_t resumes = 0;  // groups that came in
  std::uint64_t waits = 0;
  std::vector<std::size_t> order = {};  // of the groups, as they began or went on to work
  std::uint64_t promised = 0;           // of these, with a longest wait
  double nearest = 0;                   // of these, the longest as a part of what was promised
  Duration longest{};                   // wait of any
  double off_weight = 0;  // slice, always: the farthest from its weight, as a part of that
};

/// Without an oracle, Turns decides.
Played play(const Trace& trace, Oracle* oracle = nullptr, bool aloud = false);

}  // namespace amem::turn_traces
