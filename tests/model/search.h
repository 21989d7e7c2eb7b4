// Search: goes through every state that a small world can come to, without keeping any: a state is
// known by its hash, and the way to another begins anew. Each play goes on to its end or to a known
// state; what else could have been chosen on its way is played later, fewest faults first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/model/scenario.h"

namespace amem::model {

struct SearchLimits {
  std::uint64_t jobs = 1;                // processes
  std::uint64_t most_states = 1U << 22;  // more of them break a promise
};

struct Searched {
  std::uint64_t plays = 0;
  std::uint64_t states = 0;
  std::uint64_t longest = 0;  // events that come by themselves, one after another
  std::string broken;         // empty: no promise
  std::vector<std::uint8_t> way;
};

Searched search(const Scenario& scenario, int faults, const SearchLimits& limits);
/// Plays one way, prints what happens, and returns what is wrong.
std::string replay(const Scenario& scenario, int faults, const std::vector<std::uint8_t>& way);
std::string text_of(const std::vector<std::uint8_t>& way);

}  // namespace amem::model
