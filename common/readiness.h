// Whether a group takes requests now, as `amemctl ready` and GET /ready of amemd answer it. Pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <string>

namespace amem {

/// What the answer depends on.
struct GroupCondition {
  enum class State { kUnknown, kRunning, kPausing, kPaused, kResuming };

  std::string name;
  State state = State::kUnknown;
  std::string phase;     // while it pauses or resumes
  bool deep = false;     // paused, and its processes are checkpointed
  bool partial = false;  // paused, and some of its memory is still on a device
  std::uint64_t ms = 0;  // for how long it has been in this state
  std::uint32_t ranks = 0;
  std::uint32_t stopped = 0;  // of these: their processes do not run
  std::string stage;          // empty: none
  bool paused_by_stage = false;
  std::string lost;  // ranks that it lacks, for people; empty: none
  std::string note;  // what else there is to know, for people
};

/// "running", "pausing (save)", "paused (deep)".
std::string state_text(const GroupCondition& group);

/// It runs, with all ranks that it had.
bool is_ready(const GroupCondition& group);

/// A request to it is answered, perhaps after it has waited for the group's turn: its stage pauses
/// and resumes the group, and it has all ranks that it had.
bool may_wait(const GroupCondition& group);

/// A line without its end. `unix_ms`: now.
std::string readiness_text(const GroupCondition& group, std::uint64_t unix_ms);

}  // namespace amem
