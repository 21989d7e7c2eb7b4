#include "common/readiness.h"

#include <algorithm>

#include "common/times.h"

namespace amem {
namespace {

using State = GroupCondition::State;

bool whole(const GroupCondition& group) {
  return group.ranks > 0 && group.stopped == 0 && group.lost.empty();
}

}  // namespace

std::string state_text(const GroupCondition& group) {
  const std::string phase = group.phase.empty() ? "" : " (" + group.phase + ")";
  switch (group.state) {
    case State::kRunning:
      return "running";
    case State::kPausing:
      return "pausing" + phase;
    case State::kPaused:
      return group.deep ? "paused (deep)" : group.partial ? "paused (partial)" : "paused";
    case State::kResuming:
      return "resuming" + phase;
    case State::kUnknown:
      break;
  }
  return "unknown";
}

bool is_ready(const GroupCondition& group) {
  return whole(group) && group.state == State::kRunning;
}

bool may_wait(const GroupCondition& group) {
  if (is_ready(group)) return true;
  const bool between = group.state == State::kPausing || group.state == State::kResuming;
  return whole(group) && (group.paused_by_stage || (between && !group.stage.empty()));
}

std::string readiness_text(const GroupCondition& group, std::uint64_t unix_ms) {
  std::string text = "group " + group.name + (is_ready(group) ? " is ready: " : " is not ready: ") +
                     state_text(group) + " since " +
                     format_time(unix_ms - std::min(unix_ms, group.ms)) + " (" +
                     format_age(group.ms) + ")";
  if (group.state == State::kPaused)
    text += group.paused_by_stage ? ". It resumes at its next turn in stage " + group.stage
                                  : ". It is paused until somebody resumes it";
  if (group.ranks == 0) text += ". It has no rank yet";
  if (group.stopped > 0)
    text += ". " + std::to_string(group.stopped) + " of its " + std::to_string(group.ranks) +
            " ranks are stopped, as by Ctrl-Z";
  if (group.note.find(group.lost) == std::string::npos) text += ". It has " + group.lost;
  if (!group.note.empty()) text += ". " + group.note;
  return text;
}

}  // namespace amem
