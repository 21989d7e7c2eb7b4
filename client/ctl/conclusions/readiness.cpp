#include "client/ctl/conclusions/readiness.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/core/json.h"
#include "client/ctl/views/format.h"
#include "client/ctl/views/views.h"

namespace amem::ctl {
namespace {

/// Without the phase.
std::string state_only(const v1::GroupInfo& group) {
  v1::GroupInfo bare;
  bare.set_state(group.state());
  return state_text(bare);
}

}  // namespace

Readiness readiness(const v1::GroupInfo& group, std::uint64_t unix_ms) {
  const bool paused = group.state() == v1::GROUP_STATE_PAUSED;
  const std::uint64_t since = unix_ms - std::min(unix_ms, group.since_ms());
  Readiness answer;
  const bool alive = group.rank_count() > 0;
  answer.ready = alive && group.state() == v1::GROUP_STATE_RUNNING;
  answer.text = "group " + group.name() + (answer.ready ? " is ready: " : " is not ready: ") +
                state_text(group) + " since " + format_time(since) + " (" +
                format_age(group.since_ms()) + ")";
  if (paused)
    answer.text += group.paused_by_stage()
                       ? ". It resumes at its next turn in stage " + group.stage()
                       : ". It is paused until somebody resumes it";
  if (!alive) answer.text += ". It has no rank yet";
  if (!group.note().empty()) answer.text += ". " + group.note();
  answer.json = client::text_of({{"group", group.name()},
                                 {"ready", answer.ready},
                                 {"alive", alive},
                                 {"state", state_only(group)},
                                 {"paused_since_ms", paused ? since : 0},
                                 {"paused_by_stage", paused && group.paused_by_stage()},
                                 {"note", group.note()}});
  return answer;
}

}  // namespace amem::ctl
