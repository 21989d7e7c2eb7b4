#include "client/ctl/conclusions/readiness.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/core/json.h"
#include "client/ctl/views/views.h"
#include "common/readiness.h"

namespace amem::ctl {

Readiness readiness(const v1::GroupInfo& group, std::uint64_t unix_ms) {
  const GroupCondition condition = condition_of(group);
  const bool paused = condition.state == GroupCondition::State::kPaused;
  GroupCondition bare;
  bare.state = condition.state;
  Readiness answer;
  answer.ready = is_ready(condition);
  answer.text = readiness_text(condition, unix_ms);
  answer.json =
      client::text_of({{"group", group.name()},
                       {"ready", answer.ready},
                       {"alive", condition.ranks > 0},
                       {"state", state_text(bare)},
                       {"paused_since_ms", paused ? unix_ms - std::min(unix_ms, condition.ms) : 0},
                       {"paused_by_stage", paused && condition.paused_by_stage},
                       {"lost", condition.lost},
                       {"note", condition.note}});
  return answer;
}

}  // namespace amem::ctl
