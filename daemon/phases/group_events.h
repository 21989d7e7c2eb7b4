// What a Group is told while an operation is under way: by its ranks, and by the broker of its own
// part. Plain values. Those of another epoch or phase, and those that come when no operation is
// under way, are ignored.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/status.h"
#include "daemon/base/ids.h"
#include "daemon/phases/cut.h"
#include "daemon/phases/phase_times.h"
#include "daemon/phases/phases.h"

namespace amem {

namespace event {

struct CutStatus {
  RankId rank;
  Epoch epoch;
  CutReport report;
};
struct PhaseDone {
  RankId rank;
  Epoch epoch;
  RankPhase phase;
  Status status;
  std::uint64_t bytes = 0;
  CommandTimes spent = {};  // how the rank spent its time, for the Outcome
};
struct Copied {  // how far the rank's copies are; for people
  RankId rank;
  Epoch epoch;
  std::uint64_t bytes = 0;
  std::uint64_t of = 0;
};
struct FreedUnloaded {  // the rank was to load bytes that others hold too, and has let go of them
  RankId rank;
};
struct GuestsLeft {  // those that could, or as far as they were waited for
  Status status;     // not OK: some have not, and the pause is not to go on without
};
struct SaveSent {
  Status status;
  std::vector<RankId> ranks;
  bool more = false;     // it was a wave, and the next follows when it has been dropped
  bool measure = false;  // nothing was sent: the pool has no space before zeros are looked for
};
struct Dropped {
  std::string note;  // what an operator should know (memory that did not become free), or empty
};
struct Admitted {
  Status status;
};
struct Created {
  Status status;
};
struct StepOf {  // of a cut that is taken elsewhere, over several nodes
  Cut::Step step;
};
struct CutTaken {};  // over all nodes: nothing of the group runs anywhere
struct AllLeft {};   // what was to go out for the resume has left: it may take all memory there is
struct GoOn {};      // the others of its transaction are as far: what is held may release, or open
struct GiveUp {      // they never will be: what is held is called off, or rolled back
  Status why;
};

}  // namespace event

using Event = std::variant<event::CutStatus, event::PhaseDone, event::Copied, event::FreedUnloaded,
                           event::GuestsLeft, event::SaveSent, event::Dropped, event::Admitted,
                           event::Created, event::StepOf, event::CutTaken, event::AllLeft,
                           event::GoOn, event::GiveUp>;

}  // namespace amem
