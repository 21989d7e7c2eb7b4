// The events that a Group is told while an operation is under way, the actions that it wants done,
// and how its operations went. Plain values.
//
// An action that says "answered by" expects that event once it has been carried out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/status.h"
#include "daemon/base/ids.h"
#include "daemon/phases/cut.h"
#include "daemon/phases/phase_times.h"
#include "daemon/phases/phases.h"
#include "daemon/phases/task.h"

namespace amem {

/// Told by its ranks, and by the broker of its own part. Those of another epoch or phase, and those
/// that come when no operation is under way, are ignored.
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
  std::string note;   // what an operator should know (memory that did not become free), or empty
  Status stays = {};  // not OK: memory that was to leave before is on its devices still
};
struct Checkpointed {  // all processes
  Status status;       // not OK: they were brought back, so far as that was possible
  bool deep = false;   // some may be locked or checkpointed still
};
struct Restored {
  Status status;  // not OK: some are checkpointed still
};
struct Admitted {
  Status status;
};
struct Created {
  Status status;
};
struct PermitOf {  // of a cut that is taken elsewhere, over several nodes
  Cut::Permit permit;
};
struct CutTaken {};  // over all nodes: nothing of the group runs anywhere
struct AllLeft {};   // what was to go out for the resume has left: it may take all memory there is
struct GoOn {};      // the others of its transaction are as far: it may release, or open
struct GiveUp {      // they never will be: it is called off, or rolled back
  Status why;
};

}  // namespace event

using Event = std::variant<event::CutStatus, event::PhaseDone, event::Copied, event::FreedUnloaded,
                           event::GuestsLeft, event::SaveSent, event::Dropped, event::Checkpointed,
                           event::Restored, event::Admitted, event::Created, event::PermitOf,
                           event::CutTaken, event::AllLeft, event::GoOn, event::GiveUp>;

enum class GroupState : std::uint8_t { kRunning, kPausing, kPaused, kResuming };
std::string_view to_string(GroupState state);

/// What a pause did with the bytes of one tag that it kept.
struct TagSave {
  std::string tag;
  std::uint64_t kept = 0;       // bytes
  std::uint64_t compared = 0;   // of these, with what the pool had
  std::uint64_t unchanged = 0;  // of these, not copied
  std::uint64_t copied = 0;     // as they lie in the pool
  bool hashed = false;          // a later pause may compare
};

/// How an operation went.
struct Outcome {
  Task task = Operation::kPause;
  Status status;
  Duration total{};
  std::vector<PhaseTime> times;
  std::vector<PhaseSpan> spans = {};
  std::vector<TagSave> saves = {};  // of a pause, by tag
  bool again = false;               // it will be tried again: its ranks wait
};

namespace action {

struct Begun {  // an operation, whoever asked for it; the actions up to Finished are its own
  Task task;
  bool deepens = false;    // a pause of what is paused already, all of it
  bool continues = false;  // what an earlier amemd has begun
};
struct AwaitGuests {  // look who has open what would leave; answered by GuestsLeft as soon as there
                      // is nobody to wait for
  bool late = false;  // now, whoever has it open still
};
struct Quiesce {  // to these ranks
  Epoch epoch;
  std::vector<RankId> ranks;
};
struct Permit {
  Epoch epoch;
  Cut::Permit permit;
};
struct Reported {  // where the cut is taken elsewhere; answered by PermitOf and CutTaken
  RankId rank;
  std::optional<CutReport> what;  // nothing: the rank has gone
};
struct Measure {  // to these ranks: look for zeros in what they keep
  Epoch epoch;
  std::vector<RankId> ranks;
};
struct Save {   // take extents, send Save to the keepers; answered by SaveSent
  Epoch epoch;  // of a wave after the first: the extents have been taken
};
struct Leaves {};   // the cut is taken and the first Save sent: memory is on its way out
struct Ready {};    // the operation has a barrier, and has done all that it may before GoOn
struct Unready {};  // it was Ready, and is on its way back before GoOn
struct Release {  // to these ranks: of a pause what has been saved, of a resume all it has brought
  Epoch epoch;
  std::vector<RankId> ranks;
  bool undo = false;  // of a pause, too: nothing, and what was unmapped ahead is mapped again
};
struct Left {};      // of a deep pause: everything has left, so for others the group is paused
struct Drop {};      // close the descriptors of what has been released; answered by Dropped
struct Checkpoint {  // the processes of these ranks; answered by Checkpointed
  std::vector<RankId> ranks;
};
struct Restore {  // those processes of these ranks that are checkpointed or locked, by then;
                  // answered by Restored
  std::vector<RankId> ranks;
  Time by = kNever;
};
struct Admit {};  // compare need and free memory; answered by Admitted
struct Create {   // create what is not resident, send it to its keepers with Map and Load at once;
                  // answered by Created, unless the epoch has passed
  Epoch epoch;
};
struct Load {  // the last Map and Load to these ranks, which they answer
  Epoch epoch;
  std::vector<RankId> ranks;
};
struct Vacated {  // all that was to go out has left: create what waited for its memory
  Epoch epoch;
};
struct Ask {  // these ranks for this, with nothing more to be said
  Epoch epoch;
  RankPhase what;
  std::vector<RankId> ranks;
};
struct Arrived {  // what is in place needs no bytes in the pool any more
  bool loaded;    // also what this resume has brought back
  Selection what;
};
struct Answer {  // a rank's GroupRequest
  RankId rank;
  std::uint64_t seq;
  Status status;
};
struct Waits {  // ranks that have asked for something, for so long that people should know
  std::string text;
};
struct Progress {
  Phase phase;
  std::uint32_t ranks_done;
  std::uint32_t ranks_total;
  std::uint64_t bytes;
  Duration elapsed;  // since the operation began
  std::uint64_t copied = 0;
  std::uint64_t to_copy = 0;  // as far as the ranks have told
};
struct StateChanged {
  GroupState state;
};
struct Overdue {};  // the group has been paused for Deadlines::deepen: make it deep
struct Finished {
  Outcome outcome;
};

}  // namespace action

using Action =
    std::variant<action::Begun, action::AwaitGuests, action::Quiesce, action::Permit,
                 action::Reported, action::Measure, action::Save, action::Leaves, action::Ready,
                 action::Unready, action::Release, action::Left, action::Drop, action::Checkpoint,
                 action::Restore, action::Admit, action::Create, action::Load, action::Vacated,
                 action::Ask, action::Arrived, action::Answer, action::Waits, action::Progress,
                 action::StateChanged, action::Overdue, action::Finished>;

}  // namespace amem
