// Forecasts what a pause would do, for `amemctl pause --dry-run`, from what the broker tells,
// without a pause. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "amem/v1/broker.pb.h"
#include "client/ctl/command_line.h"
#include "common/status.h"

namespace amem::ctl {

/// What the broker has answered.
struct Known {
  v1::NodeStatus node;
  v1::ListRanksResponse ranks;      // of all groups
  v1::ListHistoryResponse history;  // of all groups
};

struct GroupForecast {
  std::string group;
  std::uint64_t copied_bytes = 0;      // to the pool, at most: blocks of zeros are not
  std::uint64_t unchanged_bytes = 0;   // of copied_bytes: in the pool already, if as little has
                                       // changed as before the last pause
  std::uint64_t dropped_bytes = 0;     // leaves, too, and returns zeroed
  std::uint64_t pinned_bytes = 0;      // stays: it is registered with a NIC
  std::uint64_t guest_bytes = 0;       // stays: other groups have it open
  std::uint64_t unbrokered_bytes = 0;  // stays, unless the pause is deep: it was never brokered
  bool deep = false;                   // the processes are checkpointed, too
  std::uint64_t us = 0;                // that it takes; 0: nobody knows
  std::string rests_on;                // the estimate
};

enum class Fit {
  kCertain,  // whatever the bytes are
  kLikely,   // if as much of it is zeros as at the last pause
  kUnsure,   // only if enough of it is zeros
};

struct Forecast {
  std::vector<GroupForecast> groups;
  std::uint64_t copied_bytes = 0;  // of all groups, at most
  std::uint64_t free_bytes = 0;    // that their owners can have of the pool
  std::uint64_t to_pin_bytes = 0;  // of that, what amemd pins before the pause begins
  std::string limit;               // what has so many: "the pool", "the quota of uid 1000"
  std::string pool_users;          // why it has no more, if others have segments; else empty
  std::uint64_t last_bytes = 0;    // that the last pauses of all these groups had in the pool
  Fit fit = Fit::kCertain;
};

/// Forecasts `pause` with these options. An error is the one that the pause would return: kNotFound
/// (a group, a tag), kFailedPrecondition (a state, guests that are refused, a library that keeps a
/// group from pausing), kInvalidArgument (a tag that cannot be dropped). kUnimplemented: amemd is
/// older.
Result<Forecast> forecast_pause(const CommandLine& options, const Known& known);

std::string forecast_view(const Forecast& forecast);
/// An object on one line.
std::string to_json(const Forecast& forecast);

}  // namespace amem::ctl
