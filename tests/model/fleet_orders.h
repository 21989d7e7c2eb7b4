// Orders of events, drawn from a seed, in which a hundred nodes lose their leader while they wait
// for each other.
#pragma once

#include <cstdint>
#include <string>

#include "tests/model/scenario.h"

namespace amem::model {

struct Orders {
  std::uint64_t played = 0;
  std::uint64_t gone_on = 0;   // all nodes that could
  std::uint64_t given_up = 0;  // all nodes
  std::uint64_t in_vain = 0;  // some node waited until its deadline: nobody who knew could be asked
  std::uint64_t questions = 0;  // at most, in one
  std::string broken;           // with its seed; empty: no promise
};

/// Until a promise is broken.
Orders play_orders(std::uint64_t first_seed, std::uint64_t count, Bug bug);

}  // namespace amem::model
