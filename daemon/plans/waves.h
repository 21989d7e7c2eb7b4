// Waves: in which parts a group leaves its devices when the group that comes in for it has no space
// before that: each part is saved, released and dropped, and the other group takes its place while
// the next one is saved.
//
// Pure. Not synchronised; one GroupEntry owns it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "daemon/base/ids.h"

namespace amem {

class Waves {
 public:
  struct Item {
    AllocationId id = 0;
    RankId keeper = 0;
    std::uint64_t copied = 0;  // bytes; 0: it is dropped
  };

  /// The first wave has all that is not copied; until it is released, a pause can be called off.
  /// Each wave has at most so many copied `bytes` of each keeper, but at least one item: all
  /// keepers copy in each wave.
  Waves(const std::vector<Item>& items, std::uint64_t bytes);

  /// The next wave, each keeper's in the order of its items. What `can_leave` refuses now
  /// stays in all later waves, too.
  std::vector<AllocationId> next(const std::function<bool(AllocationId)>& can_leave);
  bool done() const { return queues_.empty(); }

 private:
  std::uint64_t bytes_;
  std::map<RankId, std::deque<Item>> queues_;  // none of them empty
};

}  // namespace amem
