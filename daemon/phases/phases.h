// The phases of a pause and a resume, as one table (docs/design.md, "Phases"): what each is called,
// whether it waits for ranks, what comes next, and what a failure and a death do. Group follows
// this table; nothing else decides the order.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "daemon/base/clock.h"

namespace amem {

enum class Phase : std::uint8_t {
  kNone,  // in no operation
  kQuiesce,
  kSave,
  kRelease,
  kDrop,
  kAdmit,
  kCreate,
  kLoad,  // "map+load"
  kTurn,  // of a swap's second group
  kOpen,
  kRollback,  // of a resume: the ranks release again what they had mapped
  kPaused,    // as `next`: the operation has ended there
  kRunning,
};

/// What a failed answer, a passed deadline or a failure of the broker's own work does.
enum class OnFailure : std::uint8_t {
  kCallOff,   // gates reopen, chunks are returned, RUNNING
  kGoOn,      // noted; the operation goes on and ends with that error
  kEnd,       // nothing has been done yet: PAUSED
  kRollBack,  // the ranks release again, what was created is dropped, PAUSED
};

/// What the death of a rank that takes part does.
enum class OnDeath : std::uint8_t {
  kCallOff,           // as OnFailure
  kGoOn,              // the phase goes on without it
  kRollBackIfNeeded,  // goes on, unless it leaves bytes unloaded that others hold
};

struct PhaseRule {
  Phase phase;
  std::string_view name;
  bool waits_for_ranks;
  Phase next;
  OnFailure failure;
  OnDeath death;
};

// clang-format off
inline constexpr std::array kPhases = {
    //        phase             name        ranks  next             failure                death
    PhaseRule{Phase::kQuiesce,  "quiesce",  true,  Phase::kSave,    OnFailure::kCallOff,   OnDeath::kCallOff},
    PhaseRule{Phase::kSave,     "save",     true,  Phase::kRelease, OnFailure::kCallOff,   OnDeath::kCallOff},
    // The first Release is the point of no return. In a swap what leaves may come in waves: then Drop goes back to Save, which
    // from there on calls nothing off (Group::on_failure).
    PhaseRule{Phase::kRelease,  "release",  true,  Phase::kDrop,    OnFailure::kGoOn,      OnDeath::kGoOn},
    PhaseRule{Phase::kDrop,     "drop",     false, Phase::kPaused,  OnFailure::kGoOn,      OnDeath::kGoOn},

    PhaseRule{Phase::kAdmit,    "admit",    false, Phase::kCreate,  OnFailure::kEnd,       OnDeath::kGoOn},
    // What has been created goes to its keepers at once, so in create they map and load already.
    PhaseRule{Phase::kCreate,   "create",   false, Phase::kLoad,    OnFailure::kRollBack,  OnDeath::kRollBackIfNeeded},
    PhaseRule{Phase::kLoad,     "map+load", true,  Phase::kOpen,    OnFailure::kRollBack,  OnDeath::kRollBackIfNeeded},
    // Instead of going on to open: the group that it takes turns with is not paused yet.
    PhaseRule{Phase::kTurn,     "turn",     false, Phase::kOpen,    OnFailure::kRollBack,  OnDeath::kGoOn},
    // Ranks that have opened are running: there is no way back, and everything has been loaded.
    PhaseRule{Phase::kOpen,     "open",     true,  Phase::kRunning, OnFailure::kGoOn,      OnDeath::kGoOn},

    PhaseRule{Phase::kRollback, "rollback", true,  Phase::kDrop,    OnFailure::kGoOn,      OnDeath::kGoOn},
};
// clang-format on

/// REQUIRES: a phase of the table.
constexpr const PhaseRule& rule(Phase phase) {
  for (const PhaseRule& r : kPhases)
    if (r.phase == phase) return r;
  return kPhases.front();
}

constexpr std::string_view phase_name(Phase phase) {
  return phase == Phase::kNone ? std::string_view() : rule(phase).name;
}

/// How long each phase may take. Those of the broker's own have a limit between its steps.
struct Deadlines {
  Duration quiesce = std::chrono::seconds(30);
  Duration save = std::chrono::seconds(60);
  Duration release = std::chrono::seconds(30);  // also for the rollback of a resume
  Duration create = std::chrono::seconds(60);
  Duration load = std::chrono::seconds(60);
  Duration open = std::chrono::seconds(10);
  Duration request = std::chrono::seconds(60);     // for the other ranks to ask for the same
  Duration stall = std::chrono::milliseconds(20);  // of a quiesce, see docs/protocol.md

  Duration of(Phase phase) const {
    switch (phase) {
      case Phase::kQuiesce:
        return quiesce;
      case Phase::kSave:
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
