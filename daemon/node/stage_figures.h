// What stages have come to since the broker began, for metrics, and what groups want of their
// stages. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/node/history.h"
#include "daemon/owners/account.h"

namespace amem {

/// What a group's owner or an operator has set for its turns.
struct TurnWishes {
  std::uint32_t weight = 1;
  std::int32_t priority = 0;
  Duration longest_wait{};                     // 0: none
  std::vector<std::string> leave_first = {};   // tags, as far as they suffice
  std::vector<std::string> return_order = {};  // tags that return before the rest
  friend bool operator==(const TurnWishes&, const TurnWishes&) = default;
};

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

  /// A group that is to start, and has no ranks.
  struct Start {
    std::string name;
    std::shared_ptr<Account> account;
  };

  Histogram waits{kWaits};  // from asking to running
  std::map<Code, std::uint64_t> switches;
  Duration switching{};
  std::map<GroupId, Group> groups;
  std::map<GroupId, Start> starts;
};

}  // namespace amem
