// The phases of a pause and a resume, as one table (docs/phases.md): what each is called,
// what it does when it begins, what ends it and when, what comes next, what ranks may do and are
// told meanwhile, and what a failure, a death and a restart of the broker do. Course follows it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "common/rank_phase.h"
#include "daemon/base/clock.h"

namespace amem {

enum class Phase : std::uint8_t {
  kNone,    // in no operation
  kGuests,  // of a pause of memory that ranks of other groups have open
  kQuiesce,
  kMeasure,
  kSave,
  kAwaitSaved,  // the others of its set have not saved yet
  kRelease,
  kDrop,
  kSaveMore,  // "save" again, of a pause in waves
  kAdmit,
  kCreate,
  kLoad,        // "map+load"
  kAwaitPeers,  // of what comes in: the others of its transaction have not loaded, or not left
  kOpen,
  kRollback,     // of a resume: the ranks release again what they had mapped
  kDetach,       // of a deep pause, once all has left
  kCheckpoint,   // the same
  kRestore,      // of a resume after it, before anything else
  kReplayFrees,  // after a restore: ranks free what the program has freed meanwhile
#ifdef AMEM_TEST_SEAMS
  kTest,  // after a drop
#endif
  kPaused,  // as `next`: the operation has ended there
  kRunning,
};

/// How long each phase may take. The broker checks the limit of its own phases between their steps.
struct Deadlines {
  Duration quiesce = std::chrono::seconds(30);
  Duration save = std::chrono::seconds(60);
  Duration release = std::chrono::seconds(30);  // also for the rollback of a resume
  Duration create = std::chrono::seconds(60);
  Duration load = std::chrono::seconds(60);
  Duration open = std::chrono::seconds(10);
  Duration checkpoint = std::chrono::seconds(60);  // of all processes of a group; also a restore
  Duration request = std::chrono::seconds(60);     // for the other ranks to ask for the same
  Duration stall =
      std::chrono::milliseconds(20);  // of a quiesce, see docs/decisions/consistent-cut.md
  Duration guests = std::chrono::milliseconds(500);  // short: a swap is held up by it

  Duration deepen{};  // deep.after: a group that is paused for so long is made deep; 0: never

  /// Returns the longest time that a phase lasts, whatever its operation waits for, without what a
  /// timeout adds.
  Duration longest() const {
    return guests + quiesce + 3 * save + 3 * release + 4 * create + load + open + 2 * checkpoint;
  }
};

/// What a failed answer, a passed deadline or a failure of the broker's own work does.
enum class OnFailure : std::uint8_t {
  kCallOff,   // gates reopen, chunks are returned, RUNNING; of a group that was paused before,
              // except for some of its memory: as kRollBack
  kGoOn,      // noted; the operation goes on and ends with that error
  kEnd,       // nothing has been done yet: as it was
  kRollBack,  // kRollback comes next: the ranks release again, what was created is dropped, PAUSED
  kStay,      // the operation ends with that error, PAUSED
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
  kStay,      // nothing: PAUSED, and deep, which a resume settles
};

/// What the operation does when the phase begins: the action of that name (actions.h).
enum class PhaseEntry : std::uint8_t {
  kAwaitGuests,
  kQuiesce,
  kMeasure,
  kSave,  // answered by SaveSent, which names the ranks that were asked
  kReady,
  kRelease,
  kDrop,
  kAdmit,
  kCreate,
  kLoad,
  kAsk,  // the row's answer, of each rank
  kCheckpoint,
  kRestore,
};

/// What the phase counts anew when it begins.
enum class Counts : std::uint8_t { kNothing, kWaves, kAttempts };

enum class Gates : std::uint8_t { kAsBefore, kOpen };

/// What a rank is told that reconnects in this phase.
enum class OnComeback : std::uint8_t { kNothing, kRelease, kAsk };

/// What a passed deadline does.
enum class OnLate : std::uint8_t {
  kFail,    // OnFailure
  kDecide,  // the entry's action again, `late`: it is answered at once
};

/// Whether the operation's own timeout takes the place of the deadline.
enum class Timeout : std::uint8_t { kNo, kYes };

struct PhaseRule {
  Phase phase;
  std::string_view name;
  PhaseEntry entry;
  RankPhase answer;  // of each rank that was asked; kNone: the broker does it alone
  Phase next;        // except for what kForks says
  Counts counts;
  Gates gates;
  OnComeback comeback;
  Duration Deadlines::*limit;
  Timeout timeout;
  OnLate late;
  OnFailure failure;
  OnDeath death;
  OnRestart restart;

  constexpr bool waits_for_ranks() const { return answer != RankPhase::kNone; }
};

// clang-format off
inline constexpr std::array kPhases = {
    //        phase                name          entry                answer               next             counts             gates             comeback              limit                timeout        late             failure               death                       restart
    // The gates are open: who must close the memory may be waiting for this group's ranks.
    PhaseRule{Phase::kGuests,       "guests",     PhaseEntry::kAwaitGuests, RankPhase::kNone,    Phase::kQuiesce, Counts::kNothing,  Gates::kOpen,     OnComeback::kNothing, &Deadlines::guests,  Timeout::kNo,  OnLate::kDecide, OnFailure::kEnd,      OnDeath::kCallOff,          OnRestart::kCallOff},
    PhaseRule{Phase::kQuiesce,      "quiesce",    PhaseEntry::kQuiesce,     RankPhase::kQuiet,   Phase::kSave,    Counts::kNothing,  Gates::kAsBefore, OnComeback::kNothing, &Deadlines::quiesce, Timeout::kYes, OnLate::kFail,   OnFailure::kCallOff,  OnDeath::kCallOff,          OnRestart::kCallOff},
    PhaseRule{Phase::kSave,         "save",       PhaseEntry::kSave,        RankPhase::kSave,    Phase::kRelease, Counts::kNothing,  Gates::kAsBefore, OnComeback::kNothing, &Deadlines::save,    Timeout::kNo,  OnLate::kFail,   OnFailure::kCallOff,  OnDeath::kCallOff,          OnRestart::kCallOff},
    PhaseRule{Phase::kAwaitSaved,   "agree",      PhaseEntry::kReady,       RankPhase::kNone,    Phase::kRelease, Counts::kNothing,  Gates::kAsBefore, OnComeback::kNothing, &Deadlines::create,  Timeout::kNo,  OnLate::kFail,   OnFailure::kCallOff,  OnDeath::kCallOff,          OnRestart::kCallOff},
    // Where the pool has no space for all bytes as they are: how many are not zero?
    PhaseRule{Phase::kMeasure,      "measure",    PhaseEntry::kMeasure,     RankPhase::kMeasure, Phase::kSave,    Counts::kNothing,  Gates::kAsBefore, OnComeback::kNothing, &Deadlines::save,    Timeout::kNo,  OnLate::kFail,   OnFailure::kCallOff,  OnDeath::kCallOff,          OnRestart::kCallOff},
    // The first Release is the point of no return.
    PhaseRule{Phase::kRelease,      "release",    PhaseEntry::kRelease,     RankPhase::kRelease, Phase::kDrop,    Counts::kNothing,  Gates::kAsBefore, OnComeback::kRelease, &Deadlines::release, Timeout::kNo,  OnLate::kFail,   OnFailure::kGoOn,     OnDeath::kGoOn,             OnRestart::kRelease},
    PhaseRule{Phase::kDrop,         "drop",       PhaseEntry::kDrop,        RankPhase::kNone,    Phase::kPaused,  Counts::kNothing,  Gates::kAsBefore, OnComeback::kRelease, &Deadlines::create,  Timeout::kNo,  OnLate::kFail,   OnFailure::kGoOn,     OnDeath::kGoOn,             OnRestart::kRelease},
    // In a swap what leaves may come in waves.
    PhaseRule{Phase::kSaveMore,     "save",       PhaseEntry::kSave,        RankPhase::kSave,    Phase::kRelease, Counts::kWaves,    Gates::kAsBefore, OnComeback::kNothing, &Deadlines::save,    Timeout::kNo,  OnLate::kFail,   OnFailure::kGoOn,     OnDeath::kGoOn,             OnRestart::kRelease},

    PhaseRule{Phase::kAdmit,        "admit",      PhaseEntry::kAdmit,       RankPhase::kNone,    Phase::kCreate,  Counts::kNothing,  Gates::kAsBefore, OnComeback::kNothing, &Deadlines::create,  Timeout::kNo,  OnLate::kFail,   OnFailure::kEnd,      OnDeath::kGoOn,             OnRestart::kRollBack},
    // What has been created goes to its keepers at once, so in create they map and load already.
    PhaseRule{Phase::kCreate,       "create",     PhaseEntry::kCreate,      RankPhase::kNone,    Phase::kLoad,    Counts::kNothing,  Gates::kAsBefore, OnComeback::kNothing, &Deadlines::create,  Timeout::kNo,  OnLate::kFail,   OnFailure::kRollBack, OnDeath::kRollBackIfNeeded, OnRestart::kRollBack},
    PhaseRule{Phase::kLoad,         "map+load",   PhaseEntry::kLoad,        RankPhase::kLoad,    Phase::kOpen,    Counts::kNothing,  Gates::kAsBefore, OnComeback::kNothing, &Deadlines::load,    Timeout::kYes, OnLate::kFail,   OnFailure::kRollBack, OnDeath::kRollBackIfNeeded, OnRestart::kRollBack},
    PhaseRule{Phase::kAwaitPeers,   "turn",       PhaseEntry::kReady,       RankPhase::kNone,    Phase::kOpen,    Counts::kNothing,  Gates::kAsBefore, OnComeback::kNothing, &Deadlines::create,  Timeout::kNo,  OnLate::kFail,   OnFailure::kRollBack, OnDeath::kGoOn,             OnRestart::kRollBack},
    // Ranks that have opened are running: there is no way back, and everything has been loaded.
    PhaseRule{Phase::kOpen,         "open",       PhaseEntry::kAsk,         RankPhase::kOpen,    Phase::kRunning, Counts::kNothing,  Gates::kOpen,     OnComeback::kAsk,     &Deadlines::open,    Timeout::kNo,  OnLate::kFail,   OnFailure::kGoOn,     OnDeath::kGoOn,             OnRestart::kOpen},

    PhaseRule{Phase::kRollback,     "rollback",   PhaseEntry::kRelease,     RankPhase::kRelease, Phase::kDrop,    Counts::kAttempts, Gates::kAsBefore, OnComeback::kRelease, &Deadlines::release, Timeout::kNo,  OnLate::kFail,   OnFailure::kGoOn,     OnDeath::kGoOn,             OnRestart::kRollBack},
    // The group is paused whatever becomes of these. A restore finds out how far a checkpoint has got.
    PhaseRule{Phase::kDetach,       "detach",     PhaseEntry::kAsk,        RankPhase::kDetach, Phase::kCheckpoint, Counts::kNothing, Gates::kAsBefore, OnComeback::kAsk,  &Deadlines::release,    Timeout::kNo,  OnLate::kFail,   OnFailure::kStay,     OnDeath::kGoOn,             OnRestart::kRelease},
    PhaseRule{Phase::kCheckpoint,   "checkpoint", PhaseEntry::kCheckpoint, RankPhase::kNone,   Phase::kPaused,  Counts::kNothing,  Gates::kAsBefore, OnComeback::kNothing, &Deadlines::checkpoint, Timeout::kNo,  OnLate::kFail,   OnFailure::kStay,     OnDeath::kGoOn,             OnRestart::kStay},
    PhaseRule{Phase::kRestore,      "restore",    PhaseEntry::kRestore,    RankPhase::kNone,   Phase::kReplayFrees, Counts::kNothing, Gates::kAsBefore, OnComeback::kNothing, &Deadlines::checkpoint, Timeout::kNo,  OnLate::kFail,   OnFailure::kStay,     OnDeath::kGoOn,             OnRestart::kStay},
    // What a program has freed needs no memory, and cannot be freed while the ranks load it.
    PhaseRule{Phase::kReplayFrees,  "settle",     PhaseEntry::kAsk,        RankPhase::kAllowFrees, Phase::kAdmit, Counts::kNothing,  Gates::kAsBefore, OnComeback::kAsk,     &Deadlines::release,    Timeout::kNo,  OnLate::kFail,   OnFailure::kStay,     OnDeath::kGoOn,             OnRestart::kRollBack},
#ifdef AMEM_TEST_SEAMS
    PhaseRule{Phase::kTest,         "test",       PhaseEntry::kAsk,         RankPhase::kTest,    Phase::kPaused,  Counts::kNothing,  Gates::kAsBefore, OnComeback::kAsk,     &Deadlines::release, Timeout::kNo,  OnLate::kFail,   OnFailure::kGoOn,     OnDeath::kGoOn,             OnRestart::kRelease},
#endif
};

/// The first phases.
inline constexpr Phase kPauseBegins = Phase::kQuiesce;
inline constexpr Phase kPauseWithGuestsBegins = Phase::kGuests;
inline constexpr Phase kResumeBegins = Phase::kAdmit;
inline constexpr Phase kDeepeningBegins = Phase::kDetach;  // of what is paused already
inline constexpr Phase kDeepResumeBegins = Phase::kRestore;
inline constexpr Phase kRollbackBegins = Phase::kRollback;

/// Returns the phase that the next broker begins with.
constexpr Phase first_phase(OnRestart restart) {
  switch (restart) {
    case OnRestart::kRelease:
      return Phase::kRelease;
    case OnRestart::kRollBack:
      return Phase::kRollback;
    case OnRestart::kCallOff:
    case OnRestart::kOpen:
    case OnRestart::kStay:  // begins nothing
      break;
  }
  return Phase::kOpen;
}

/// Why a phase is not followed by its `next`.
enum class Reason : std::uint8_t {
  kNoSpace,      // the pool has none for all bytes as they are, and nothing has been sent
  kMoreToSave,  // this was a wave, and not the last
  kDeep,        // nothing is to stay on the devices
  kRunsOn,      // without chosen tags, or without those that could not be restored, a group runs on
  kBarrier,     // others of its transaction (daemon/transactions/transaction.h) are not as far yet
  kWasPaused,   // a pause of a group that was paused before: what it was to take stays
#ifdef AMEM_TEST_SEAMS
  kTest,  // test_phase()
#endif
};

#ifdef AMEM_TEST_SEAMS
/// Whether the phase for tests is on (tests/seams).
bool test_phase();
#endif

struct Fork {
  Phase phase;
  Reason reason;
  Phase next;
};

/// The first that holds counts.
inline constexpr std::array kForks = {
    Fork{Phase::kSave, Reason::kNoSpace,    Phase::kMeasure},
    Fork{Phase::kSave, Reason::kBarrier,    Phase::kAwaitSaved},
    Fork{Phase::kDrop, Reason::kMoreToSave, Phase::kSaveMore},
    Fork{Phase::kDrop, Reason::kDeep,       Phase::kDetach},
    Fork{Phase::kDrop, Reason::kRunsOn,     Phase::kOpen},
#ifdef AMEM_TEST_SEAMS
    Fork{Phase::kDrop, Reason::kTest,       Phase::kTest},
#endif
    Fork{Phase::kLoad, Reason::kBarrier,    Phase::kAwaitPeers},
    Fork{Phase::kRollback, Reason::kWasPaused, Phase::kPaused},
};

/// Phases of the others of its transaction that an operation may have to wait for in this one.
struct Awaited {
  Phase phase;
  std::array<Phase, 5> of_others;  // kNone: no more
  std::string_view not_yet;        // of those others, for people
};

inline constexpr std::array kAwaited = {
    Awaited{Phase::kAwaitSaved, {Phase::kGuests, Phase::kQuiesce, Phase::kMeasure, Phase::kSave},                 "have not saved yet"},
    Awaited{Phase::kCreate,     {Phase::kSave, Phase::kRelease, Phase::kDrop},                                    ""},
    // Without space the restore waits for it, too.
    Awaited{Phase::kRestore,    {Phase::kSave, Phase::kRelease, Phase::kDrop},                                    ""},
    Awaited{Phase::kAwaitPeers, {Phase::kCreate, Phase::kLoad, Phase::kSave, Phase::kRelease, Phase::kDrop},      "have not left or not loaded yet"},
};
// clang-format on

constexpr const Awaited* awaited_in(Phase phase) {
  for (const Awaited& each : kAwaited)
    if (each.phase == phase) return &each;
  return nullptr;
}

constexpr std::string_view not_yet(Phase phase) {
  const Awaited* const awaited = awaited_in(phase);
  return awaited == nullptr ? std::string_view() : awaited->not_yet;
}

/// REQUIRES: a phase of the table.
constexpr const PhaseRule& rule(Phase phase) {
  for (const PhaseRule& r : kPhases)
    if (r.phase == phase) return r;
  return kPhases.front();
}

/// `applies(Reason)`. REQUIRES: a phase of the table.
template <class Applies>
constexpr Phase next_phase(Phase phase, Applies applies) {
  for (const Fork& fork : kForks)
    if (fork.phase == phase && applies(fork.reason)) return fork.next;
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

}  // namespace amem
