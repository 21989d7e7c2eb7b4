// What there is in a trace of a stage, from a seed: the stage, its groups, and what may happen.
// Plain values.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "daemon/settings/stage_settings.h"
#include "tests/world/dice.h"

namespace amem::stage_traces {

using world::Dice;

inline constexpr int kDevices = 3;                 // of the node
inline constexpr std::uint64_t kPage = 4096;       // bytes
inline constexpr std::uint64_t kDevicePages = 64;  // of each device
inline constexpr std::uint64_t kMarginPages = 2;   // of each device of the stage
// A first turn without a rank ends after so long: where another owner waits, and else.
inline constexpr Duration kStartLimitShared = std::chrono::seconds(10);
inline constexpr Duration kStartLimit = std::chrono::seconds(30);

/// Of a group's memory: one allocation of one rank.
struct Piece {
  std::string tag;  // another one for each piece of the group
  int device = 0;
  std::uint64_t pages = 0;
  bool pinned = false;
  bool own = false;  // the rank makes it itself
};

struct GroupPlan {
  std::string name;
  uid_t user = 0;
  int ranks = 1;
  std::vector<Piece> pieces;  // the n-th is of rank n % ranks
  std::set<int> sees;         // devices
  bool announced = false;     // by StartGroup, before its first rank
  bool loiters = false;       // whoever has announced it does nothing for a while after that
  int guest_of = -1;          // opens memory of this group
  Duration joins{};
  // Pieces of work: how long, and from the end of one to the next.
  Duration most_work{};
  Duration least_gap{};
  Duration most_gap{};
  std::uint32_t weight = 1;
  std::int32_t priority = 0;
  std::vector<std::string> leave_first;
};

struct StageTrace {
  std::uint64_t seed = 0;
  StageSettings stage;
  int devices = 1;  // of the stage: the node's first ones
  std::vector<GroupPlan> groups;
  Duration length{};
  Duration deepen{};       // 0: nobody is made deep
  bool others = false;     // memory without amem changes
  bool mishaps = false;    // ranks do not answer or fail, steps of the driver fail
  bool operators = false;  // pause and resume
  bool churn = false;      // ranks end, groups end and join again
  bool loiterers = false;  // GroupPlan::loiters
  bool promises = false;   // groups have longest waits
  bool deaths = false;     // of amemd
  bool late = false;       // ranks of a group come one after another
  bool speeds = false;     // some ranks do what they are told more slowly than the others
  bool forks = false;      // children have the sessions of ranks, also once these have ended
  bool wrong = false;      // the first group of an operation does not exist
  bool reasons = true;     // what amemd says of groups that wait is looked at
};

StageTrace make_trace(std::uint64_t seed);
/// What a trace can do without: "pins", "guests", "apart", "deep", "others", …
const std::vector<std::string>& features();
/// REQUIRES: one of these.
void leave_out(StageTrace& trace, const std::string& feature);
/// "seed 7: demand, 5 groups on 2 GPUs, mishaps, …".
std::string describe(const StageTrace& trace);

}  // namespace amem::stage_traces
