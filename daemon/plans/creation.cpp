#include "daemon/plans/creation.h"

#include <algorithm>
#include <map>

namespace amem {

Creation::Creation(const std::vector<Item>& items) : left_(items.size()) {
  std::map<RankId, std::size_t> queue_of;
  for (const Item& item : items) {
    const auto [it, first] = queue_of.try_emplace(item.keeper, queues_.size());
    if (first) queues_.push_back({item.keeper, {}});
    queues_[it->second].items.push_back(item);
  }
}

std::vector<Creation::Item> Creation::slice_of(Queue& queue, Headroom& headroom) {
  std::vector<Item> slice;
  std::vector<Item> waiting;  // do not fit, in order
  std::uint64_t bytes = 0;
  while (!queue.items.empty() && slice.size() < kSliceCount && bytes < kSliceBytes) {
    const Item item = queue.items.front();
    queue.items.pop_front();
    if (!headroom.take(item.device, item.needed)) {
      waiting.push_back(item);
      continue;
    }
    bytes += item.size;
    slice.push_back(item);
  }
  queue.items.insert(queue.items.begin(), waiting.begin(), waiting.end());
  return slice;
}

std::vector<Creation::Item> Creation::next(Headroom& headroom) {
  for (std::size_t tried = 0; tried < queues_.size(); ++tried) {
    Queue& queue = queues_[turn_];
    turn_ = (turn_ + 1) % queues_.size();
    std::vector<Item> slice = slice_of(queue, headroom);
    left_ -= slice.size();
    if (!slice.empty()) return slice;
  }
  return {};
}

void Creation::put_back(const Item& item) {
  const auto queue = std::find_if(queues_.begin(), queues_.end(),
                                  [&](const Queue& q) { return q.keeper == item.keeper; });
  if (queue == queues_.end()) return;
  queue->items.push_front(item);
  ++left_;
}

}  // namespace amem
