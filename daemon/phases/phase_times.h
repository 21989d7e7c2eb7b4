// Where the time of an operation goes: by phase, and in a phase by rank. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/phases/phases.h"

namespace amem {

/// What a rank says of its work on one command; zero: it did no such thing. Copies run beside the
/// rest, so the parts may add up to more than `busy`.
struct RankWork {
  Duration busy{};  // from the command's first packet to the answer
  Duration copy{};  // from the first copy queued to the end of the last one
  Duration import{};
  Duration map{};
  Duration access{};
  Duration unmap{};
  Duration release{};
  std::uint64_t handles = 0;  // imported or released

  RankWork& operator+=(const RankWork& more);
};

/// What one rank did in one phase; two answers (map, then load) are added up.
struct RankTime {
  RankId rank = 0;
  Duration time{};  // from the beginning of the phase to the rank's last answer
  std::uint64_t copied = 0;
  RankWork work;
};

struct PhaseTime {
  Phase phase = Phase::kNone;
  Duration time{};
  std::vector<RankTime> ranks = {};  // that answered, by id
  Duration broker{};                 // CPU time of the broker's thread meanwhile
  Duration driver{};                 // that it was in driver calls
};

/// Adds a phase that has ended; one that comes several times (a pause in waves) is added up.
void add_time(std::vector<PhaseTime>& times, Phase phase, Duration time,
              const std::map<RankId, RankTime>& ranks);

}  // namespace amem
