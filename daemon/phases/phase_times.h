// Where the time of an operation goes: by phase, and in a phase by rank. Plain values.
//
// Times are sums, by which operations are compared. Spans say when each thing was done, for a
// trace.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/phases/phases.h"

namespace amem {

/// Since a command's first packet; both 0: not known, or it did no such thing.
struct Period {
  Duration from{};
  Duration to{};
};

/// What a rank says of its work on one command; zero: it did no such thing. Copies run beside the
/// rest, so the parts may add up to more than `busy`.
struct CommandTimes {
  Duration busy{};  // from the command's first packet to the answer
  Duration copy{};  // from the first copy queued to the end of the last one
  Duration import{};
  Duration map{};
  Duration access{};
  Duration unmap{};
  Duration release{};
  std::uint64_t handles = 0;  // imported or released
  // When each of these was; of a sum nobody can say.
  Period when_copy{};
  Period when_import{};
  Period when_map{};
  Period when_access{};
  Period when_unmap{};
  Period when_release{};

  CommandTimes& operator+=(const CommandTimes& more);
};

/// What one rank did in one phase; two answers (map, then load) are added up.
struct RankTime {
  RankId rank = 0;
  Duration time{};  // from the beginning of the phase to the rank's last answer
  std::uint64_t copied = 0;
  CommandTimes spent;
};

struct PhaseTime {
  Phase phase = Phase::kNone;
  Duration time{};
  std::vector<RankTime> ranks = {};  // that answered, by id
  Duration broker{};                 // CPU time of the broker's thread meanwhile
  Duration driver{};                 // that it was in driver calls
};

/// One answer of a rank's.
struct RankSpan {
  RankId rank = 0;
  RankPhase what = RankPhase::kNone;
  Duration answered{};  // since the operation began
  std::uint64_t bytes = 0;
  CommandTimes spent;
};

/// Once through one phase. Times since the operation began.
struct PhaseSpan {
  Phase phase = Phase::kNone;
  Duration begin{};
  Duration end{};
  std::vector<RankSpan> ranks;  // as they answered
};

/// Adds a phase that has ended; one that comes several times (a pause in waves) is added up.
void add_time(std::vector<PhaseTime>& times, Phase phase, Duration time,
              const std::map<RankId, RankTime>& ranks);

}  // namespace amem
