// Why a group waits, and when its first turn ends, in words.
#include <algorithm>
#include <set>

#include "daemon/base/units.h"
#include "daemon/turns/decide.h"
#include "daemon/turns/snapshot.h"

namespace amem {

std::string first_turn_end(const StageView& view, const StageMemory& memory, GroupId id, Time now) {
  const GroupView* const group = view.find(id);
  const GroupMemory& m = memory.groups.at(id);
  if (group == nullptr || !m.first_turn) return {};
  const Time ends = StageSnapshot(view, memory, now).first_turn_ends(*group, m);
  if (ends == kNever) return "its first turn has no limit";
  return "its first turn ends in " + rounded_duration(std::max(ends - now, Duration{}));
}

std::string describe(const StageView& view, const StageMemory& memory, GroupId group,
                     const Hindrance& hindrance, const std::function<std::string(GroupId)>& name,
                     Time now) {
  const auto in = [now](Time at) {
    return " in " + rounded_duration(std::max(at - now, Duration{}));
  };
  std::string others;
  std::set<std::string> told;
  for (const GroupId id : hindrance.others)
    if (told.insert(name(id)).second) others += (others.empty() ? "" : ", ") + name(id);
  switch (hindrance.kind) {
    case Hindrance::Kind::kNone:
      return {};
    case Hindrance::Kind::kSwitching:
      return "waits for the end of a switch or of an operation of a group of this stage";
    case Hindrance::Kind::kMissing:
      return "waits for " + view.find(group)->missing;
    case Hindrance::Kind::kGrace:
      return "waits for the grace time of the stage, which ends" + in(hindrance.until);
    case Hindrance::Kind::kFailed: {
      const GroupMemory& m = memory.groups.at(group);
      return "its switch has failed " + std::to_string(m.failures) +
             (m.failures == 1 ? " time: " : " times: ") + m.failure + ". The next try is" +
             in(hindrance.until);
    }
    case Hindrance::Kind::kDoesNotFit: {
      std::string text = "does not fit: it needs " + format_size(hindrance.needs) + " on GPU " +
                         std::to_string(view.devices[hindrance.device].ordinal) + ", and at most " +
                         format_size(hindrance.at_most) +
                         " can become free. Processes and contexts that take no "
                         "turns have " +
                         format_size(hindrance.taken);
      if (!others.empty())
        text += ", and " + format_size(hindrance.stays) + " of " + others +
                " cannot leave, because it is registered with a NIC or open in other groups";
      return text;
    }
    case Hindrance::Kind::kRuns:
      if (others.empty()) return "waits for memory of groups that run";
      for (const GroupId id : hindrance.others)
        if (const GroupView* const other = view.find(id);
            other != nullptr && !other->missing.empty())
          return "waits for " + name(id) + ", which waits for " + other->missing;
      return "waits for " + others + ", which may leave" +
             (hindrance.until == kNever ? " when it is idle" : in(hindrance.until));
    case Hindrance::Kind::kBefore:
      return others + " is before it in the queue";
  }
  return {};
}

}  // namespace amem
