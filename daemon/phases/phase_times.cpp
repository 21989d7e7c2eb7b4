#include "daemon/phases/phase_times.h"

#include <algorithm>

namespace amem {

CommandTimes& CommandTimes::operator+=(const CommandTimes& more) {
  busy += more.busy;
  copy += more.copy;
  import += more.import;
  map += more.map;
  access += more.access;
  unmap += more.unmap;
  release += more.release;
  handles += more.handles;
  when_copy = when_import = when_map = when_access = when_unmap = when_release = {};
  return *this;
}

void add_time(std::vector<PhaseTime>& times, Phase phase, Duration time,
              const std::map<RankId, RankTime>& ranks) {
  auto sum = std::find_if(times.begin(), times.end(),
                          [phase](const PhaseTime& t) { return t.phase == phase; });
  if (sum == times.end()) sum = times.insert(times.end(), PhaseTime{phase});
  sum->time += time;
  for (const auto& [id, rank] : ranks) {
    auto it = std::find_if(sum->ranks.begin(), sum->ranks.end(),
                           [id = id](const RankTime& r) { return r.rank >= id; });
    if (it == sum->ranks.end() || it->rank != id)
      it = sum->ranks.insert(it, {.rank = id, .time = {}, .copied = 0, .spent = {}});
    it->time += rank.time;
    it->copied += rank.copied;
    it->spent += rank.spent;
  }
}

}  // namespace amem
