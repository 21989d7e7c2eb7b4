// What stages have come to since the broker began, for metrics. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/node/history.h"

namespace amem {

struct StageFigures {
  /// In microseconds, of waits.
  static constexpr std::array<std::uint64_t, 12> kWaits = {
      100'000,    250'000,    500'000,    1'000'000,   2'000'000,     5'000'000,
      10'000'000, 30'000'000, 60'000'000, 300'000'000, 1'200'000'000, 3'600'000'000};
  struct Group {
    Duration there{};  // in the stage
    Duration ran{};
    Duration waited{};
  };

  Histogram waits{kWaits};  // from asking to running
  std::map<Code, std::uint64_t> switches;
  Duration switching{};
  std::map<GroupId, Group> groups;
};

}  // namespace amem
