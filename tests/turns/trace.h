// What happens to a stage from its beginning to its end, from a seed: its rules, its groups, when
// each has work, and what goes wrong. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/fixtures/turns_by_events.h"
#include "tests/world/dice.h"

namespace amem::turn_traces {

using world::Dice;

enum class Kind : std::uint8_t {
  kBursts,   // a few groups have work for a while, then others
  kUniform,  // each piece of work is of any group
  kAlways,   // all groups have work all the time
};
inline constexpr Kind kKinds[] = {Kind::kBursts, Kind::kUniform, Kind::kAlways};
const char* to_string(Kind kind);

struct Work {
  Duration at{};  // since the beginning; it cannot begin earlier
  Duration takes{};
};

struct Trace {
  std::uint64_t seed = 0;
  Kind kind = Kind::kBursts;
  TurnRules rules;
  std::vector<StageDevice> devices;
  std::vector<TurnTerms> groups;
  std::vector<std::vector<Work>> work;  // of each group, by time
  Duration end{};                       // of the storms, and of a trace without end
  bool exclusive = false;               // no two groups fit beside each other
  bool storms = false;                  // switches fail, groups end, join, grow, operators pause
  bool starts = false;                  // groups that join have a first turn alone
  bool comparable = false;              // with other ways to choose who leaves
  bool parts = false;                   // of groups may leave first
};

/// "seed 7: demand, bursts, 12 groups on 2 GPUs, ...".
std::string describe(const Trace& trace);

Trace make_trace(std::uint64_t seed);

}  // namespace amem::turn_traces
