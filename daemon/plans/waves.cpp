#include "daemon/plans/waves.h"

namespace amem {

Waves::Waves(const std::vector<Item>& items, std::uint64_t bytes) : bytes_(bytes) {
  for (const bool copied : {false, true})
    for (const Item& item : items)
      if ((item.copied > 0) == copied) queues_[item.keeper].push_back(item);
}

std::vector<AllocationId> Waves::next(const std::function<bool(AllocationId)>& can_leave) {
  std::vector<AllocationId> wave;
  for (auto& [keeper, queue] : queues_) {
    std::uint64_t taken = 0;
    while (!queue.empty() && (taken == 0 || taken + queue.front().copied <= bytes_)) {
      const Item item = queue.front();
      queue.pop_front();
      if (!can_leave(item.id)) continue;
      wave.push_back(item.id);
      taken += item.copied;
    }
  }
  std::erase_if(queues_, [](const auto& entry) { return entry.second.empty(); });
  return wave;
}

}  // namespace amem
