// The phases of a pause and a resume, as one table (docs/design.md, "Phases"): what each is called,
// what ends it, what comes next, and what a failure, a death and a restart of the broker do. Course
// follows this table, and has what a phase does when it begins.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "daemon/base/clock.h"

namespace amem {

enum class Phase : std::uint8_t {
  kNone,    // in no operation
  kGuests,  // of a pause of memory that ranks of other groups have open
  kQuiesce,
  kMeasure,
  kSave,
  kAgree,  // the others of its set have not saved yet
  kRelease,
  kDrop,
  kSaveMore,  // "save" again, of a pause in waves
  kAdmit,
  kCreate,
  kLoad,  // "map+load"
  kTurn,  // of what comes in: the others of its transaction have not loaded, or not left
  kOpen,
  kRollback,  // of a resume: the ranks release again what they had mapped
  kPaused,    // as `next`: the operation has ended there
  kRunning,
};

/// What a rank's PhaseDone answers; kQuiet: its CutStatus says so.
enum class RankPhase : std::uint8_t {
  kNone,
  kQuiet,
  kMeasure,
  kSave,
  kRelease,
  kMap,
  kLoad,
  kOpen
};

/// What a failed answer, a passed deadline or a failure of the broker's own work does.
enum class OnFailure : std::uint8_t {
  kCallOff,   // gates reopen, chunks are returned, RUNNING
  kGoOn,      // noted; the operation goes on and ends with that error
  kEnd,       // nothing has been done yet: as it was
  kRollBack,  // kRollback comes next: the ranks release again, what was created is dropped, PAUSED
};

/// What the death of a rank that takes part does.
enum class OnDeath : std::uint8_t {
  kCallOff,           // as OnFailure
  kGoOn,              // the phase goes on without it
  kRollBackIfNeeded,  // goes on, unless it leaves bytes unloaded that others hold
};

/// What the next broker does with an operation whose broker has ended in this phase.
enum class OnRestart : std::uint8_t {
  kCallOff,   // gates open, chunks are returned, RUNNING
  kRelease,   // the bytes are safe: the ranks release, again perhaps, and the pause goes on
  kRollBack,  // as OnFailure
  kOpen,      // everything is there: the ranks open, again perhaps
};

struct PhaseRule {
  Phase phase;
  std::string_view name;
  RankPhase
      answer;  // of each rank, with which it has done its part; kNone: the broker does it alone
  Phase next;  // but for what kForks says
  OnFailure failure;
  OnDeath death;
  OnRestart restart;

  constexpr bool waits_for_ranks() const { return answer != RankPhase::kNone; }
};

// clang-format off
inline constexpr std::array kPhases = {
    //        phase             name        answer          next             failure                death                       restart
    // The gates are open: who is to close the memory may be waiting for this group's ranks.
    PhaseRule{Phase::kGuests,   "guests",   RankPhase::kNone,    Phase::kQuiesce, OnFailure::kEnd,       OnDeath::kCallOff,          OnRestart::kCallOff},
    PhaseRule{Phase::kQuiesce,  "quiesce",  RankPhase::kQuiet,   Phase::kSave,    OnFailure::kCallOff,   OnDeath::kCallOff,          OnRestart::kCallOff},
    PhaseRule{Phase::kSave,     "save",     RankPhase::kSave,    Phase::kRelease, OnFailure::kCallOff,   OnDeath::kCallOff,          OnRestart::kCallOff},
    PhaseRule{Phase::kAgree,    "agree",    RankPhase::kNone,    Phase::kRelease, OnFailure::kCallOff,   OnDeath::kCallOff,          OnRestart::kCallOff},
    // Where the pool has no space for all bytes as they are: how many are not zero?
    PhaseRule{Phase::kMeasure,  "measure",  RankPhase::kMeasure, Phase::kSave,    OnFailure::kCallOff,   OnDeath::kCallOff,          OnRestart::kCallOff},
    // The first Release is the point of no return.
    PhaseRule{Phase::kRelease,  "release",  RankPhase::kRelease, Phase::kDrop,    OnFailure::kGoOn,      OnDeath::kGoOn,             OnRestart::kRelease},
    PhaseRule{Phase::kDrop,     "drop",     RankPhase::kNone,    Phase::kPaused,  OnFailure::kGoOn,      OnDeath::kGoOn,             OnRestart::kRelease},
    // In a swap what leaves may come in waves.
    PhaseRule{Phase::kSaveMore, "save",     RankPhase::kSave,    Phase::kRelease, OnFailure::kGoOn,      OnDeath::kGoOn,             OnRestart::kRelease},

    PhaseRule{Phase::kAdmit,    "admit",    RankPhase::kNone,    Phase::kCreate,  OnFailure::kEnd,       OnDeath::kGoOn,             OnRestart::kRollBack},
    // What has been created goes to its keepers at once, so in create they map and load already.
    PhaseRule{Phase::kCreate,   "create",   RankPhase::kNone,    Phase::kLoad,    OnFailure::kRollBack,  OnDeath::kRollBackIfNeeded, OnRestart::kRollBack},
    PhaseRule{Phase::kLoad,     "map+load", RankPhase::kLoad,    Phase::kOpen,    OnFailure::kRollBack,  OnDeath::kRollBackIfNeeded, OnRestart::kRollBack},
    PhaseRule{Phase::kTurn,     "turn",     RankPhase::kNone,    Phase::kOpen,    OnFailure::kRollBack,  OnDeath::kGoOn,             OnRestart::kRollBack},
    // Ranks that have opened are running: there is no way back, and everything has been loaded.
    PhaseRule{Phase::kOpen,     "open",     RankPhase::kOpen,    Phase::kRunning, OnFailure::kGoOn,      OnDeath::kGoOn,             OnRestart::kOpen},

    PhaseRule{Phase::kRollback, "rollback", RankPhase::kRelease, Phase::kDrop,    OnFailure::kGoOn,      OnDeath::kGoOn,             OnRestart::kRollBack},
};

/// The first phases.
inline constexpr Phase kPauseBegins = Phase::kQuiesce;
inline constexpr Phase kPauseWithGuestsBegins = Phase::kGuests;
inline constexpr Phase kResumeBegins = Phase::kAdmit;

/// What the next broker begins with.
constexpr Phase first_phase(OnRestart restart) {
  switch (restart) {
    case OnRestart::kRelease:
      return Phase::kRelease;
    case OnRestart::kRollBack:
      return Phase::kRollback;
    case OnRestart::kCallOff:
    case OnRestart::kOpen:
      break;
  }
  return Phase::kOpen;
}

/// Why a phase is not followed by its `next`.
enum class Reason : std::uint8_t {
  kNoSpace,      // the pool has none for all bytes as they are, and nothing has been sent
  kMoreToSave,  // this was a wave, and not the last
  kRunsOn,      // without chosen tags, or without those that could not come back, a group runs on
  kHeld,        // others of its transaction (daemon/phases/link.h) are not as far yet
};

struct Fork {
  Phase phase;
  Reason reason;
  Phase next;
};

/// The first that holds counts.
inline constexpr std::array kForks = {
    Fork{Phase::kSave, Reason::kNoSpace,     Phase::kMeasure},
    Fork{Phase::kSave, Reason::kHeld,       Phase::kAgree},
    Fork{Phase::kDrop, Reason::kMoreToSave, Phase::kSaveMore},
    Fork{Phase::kDrop, Reason::kRunsOn,     Phase::kOpen},
    Fork{Phase::kLoad, Reason::kHeld,       Phase::kTurn},
};
// clang-format on

/// REQUIRES: a phase of the table.
constexpr const PhaseRule& rule(Phase phase) {
  for (const PhaseRule& r : kPhases)
    if (r.phase == phase) return r;
  return kPhases.front();
}

/// `holds(Reason)`. REQUIRES: a phase of the table.
template <class Holds>
constexpr Phase next_phase(Phase phase, Holds holds) {
  for (const Fork& fork : kForks)
    if (fork.phase == phase && holds(fork.reason)) return fork.next;
  return rule(phase).next;
}

constexpr std::string_view phase_name(Phase phase) {
  return phase == Phase::kNone ? std::string_view() : rule(phase).name;
}

/// The phases of one name are one to those who watch: their times and costs are added up.
constexpr Phase first_of_name(Phase phase) {
  for (const PhaseRule& r : kPhases)
    if (r.name == phase_name(phase)) return r.phase;
  return phase;
}

/// How long each phase may take. Those of the broker's own have a limit between its steps.
struct Deadlines {
  Duration quiesce = std::chrono::seconds(30);
  Duration save = std::chrono::seconds(60);
  Duration release = std::chrono::seconds(30);  // also for the rollback of a resume
  Duration create = std::chrono::seconds(60);
  Duration load = std::chrono::seconds(60);
  Duration open = std::chrono::seconds(10);
  Duration request = std::chrono::seconds(60);       // for the other ranks to ask for the same
  Duration stall = std::chrono::milliseconds(20);    // of a quiesce, see docs/protocol.md
  Duration guests = std::chrono::milliseconds(500);  // short: a swap is held up by it

  /// No phase lasts longer, whatever its operation waits for; but for what a timeout adds.
  Duration longest() const {
    return guests + quiesce + 3 * save + 2 * release + 4 * create + load + open;
  }
  Duration of(Phase phase) const {
    switch (phase) {
      case Phase::kGuests:
        return guests;
      case Phase::kQuiesce:
        return quiesce;
      case Phase::kMeasure:
      case Phase::kSave:
      case Phase::kSaveMore:
        return save;
      case Phase::kRelease:
      case Phase::kRollback:
        return release;
      case Phase::kLoad:
        return load;
      case Phase::kOpen:
        return open;
      default:
        return create;
    }
  }
};

}  // namespace amem
