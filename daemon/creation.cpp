#include "daemon/creation.h"

#include <map>

namespace amem {

Creation::Creation(const std::vector<Item>& items) : left_(items.size()) {
  std::map<RankId, std::size_t> queue_of;
  for (const Item& item : items) {
    const auto [it, first] = queue_of.try_emplace(item.keeper, queues_.size());
    if (first) queues_.emplace_back();
    queues_[it->second].items.push_back(item);
  }
}

std::vector<Creation::Item> Creation::next() {
  std::vector<Item> slice;
  for (std::size_t tried = 0; tried < queues_.size() && slice.empty(); ++tried) {
    Queue& queue = queues_[turn_];
    turn_ = (turn_ + 1) % queues_.size();
    std::uint64_t bytes = 0;
    while (queue.at < queue.items.size() && slice.size() < kSliceCount && bytes < kSliceBytes) {
      const Item& item = queue.items[queue.at++];
      bytes += item.size;
      slice.push_back(item);
    }
  }
  left_ -= slice.size();
  return slice;
}

}  // namespace amem
