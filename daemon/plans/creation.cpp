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

std::vector<Creation::Item> Creation::slice_of(Queue& queue, const Takes& takes) {
  std::vector<Item> slice;
  std::vector<Item> waiting;  // cannot come now, in order
  std::uint64_t copied = 0;
  std::uint64_t made = 0;
  while (!queue.items.empty() && slice.size() < kSliceCount && copied < kSliceCopied &&
         made < kSliceMade) {
    const Item item = queue.items.front();
    queue.items.pop_front();
    if (!takes(item)) {
      waiting.push_back(item);
      continue;
    }
    copied += item.copied;
    made += item.needed;
    slice.push_back(item);
  }
  queue.items.insert(queue.items.begin(), waiting.begin(), waiting.end());
  return slice;
}

std::vector<Creation::Item> Creation::next(const Takes& takes) {
  for (std::size_t tried = 0; tried < queues_.size(); ++tried) {
    Queue& queue = queues_[turn_];
    turn_ = (turn_ + 1) % queues_.size();
    std::vector<Item> slice = slice_of(queue, takes);
    left_ -= slice.size();
    if (!slice.empty()) return slice;
  }
  return {};
}

void Creation::put_back(const Item& item) {
  const auto queue = std::find_if(queues_.begin(), queues_.end(),
                                  [&](const Queue& q) { return q.keeper == item.keeper; });
  queue->items.push_front(item);
  ++left_;
}

}  // namespace amem
