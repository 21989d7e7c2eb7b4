#include "daemon/turns/view.h"

#include <algorithm>

namespace amem {
namespace {

/// A switch that took long once does not always count.
constexpr std::size_t kMostCosts = 8;

Duration worst_of(const std::deque<Duration>& costs) {
  const auto it = std::max_element(costs.begin(), costs.end());
  return it == costs.end() ? Duration{} : std::min<Duration>(*it, kLongestTurnTime);
}

bool contains(const std::vector<GroupId>& groups, GroupId id) {
  return std::find(groups.begin(), groups.end(), id) != groups.end();
}

}  // namespace

bool Switch::leaves(GroupId id) const { return contains(out, id); }
bool Switch::comes(GroupId id) const { return contains(in, id); }

void Costs::add(Duration cost, bool whole) {
  std::deque<Duration>& costs = whole ? whole_ : parts_;
  costs.push_back(cost);
  if (costs.size() > kMostCosts) costs.pop_front();
}

Duration Costs::worst() const { return worst_of(whole_.empty() ? parts_ : whole_); }

const GroupView* StageView::find(GroupId id) const {
  const auto it = std::find_if(groups.begin(), groups.end(),
                               [id](const GroupView& each) { return each.id == id; });
  return it == groups.end() ? nullptr : &*it;
}

const GroupMemory* StageMemory::taker(GroupId id) const {
  const auto it = groups.find(id);
  return it != groups.end() && it->second.admitted ? &it->second : nullptr;
}

}  // namespace amem
