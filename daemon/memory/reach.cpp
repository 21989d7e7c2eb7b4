#include "daemon/memory/reach.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace amem {

void Reach::add_segment(std::uint64_t size, int node) { segments_.push_back({size, node, 0}); }

void Reach::withdraw(std::uint32_t segment) {
  segments_[segment].size = 0;
  for (auto& [rank, reach] : ranks_)
    if (segment < reach.segments.size() && reach.segments[segment].state == State::kTold)
      reach.segments[segment].state = State::kDoubtful;
}

void Reach::restore(std::uint32_t segment, std::uint64_t size, int node) {
  segments_[segment].size = size;
  segments_[segment].node = node;
}

void Reach::left(std::uint32_t segment, std::uint64_t size) {
  for (auto& [rank, reach] : ranks_) {
    if (segment >= reach.segments.size()) continue;
    const Reached was = std::exchange(reach.segments[segment], {});
    if (!was.given_for) continue;
    std::uint64_t& given = reach.needs[*was.given_for].given;
    given -= std::min(given, size);
  }
  segments_[segment].ranks = 0;
}

void Reach::join(RankId rank, GroupId group) { ranks_[rank].group = group; }

void Reach::add_need(RankId rank, int node, std::uint64_t bytes) {
  RankReach& reach = ranks_[rank];
  reach.needs[node].bytes += bytes;
  to_save_[reach.group] += bytes;
}

void Reach::release(RankId rank, int node, std::uint64_t bytes) {
  RankReach& reach = ranks_[rank];
  Need& need = reach.needs[node];
  const std::uint64_t less = std::min(need.bytes, bytes);
  need.bytes -= less;
  to_save_[reach.group] -= less;
}

std::uint64_t Reach::to_save() const {
  std::uint64_t bytes = 0;
  for (const auto& [group, of_group] : to_save_) bytes += of_group;
  return bytes;
}

std::uint64_t Reach::share(GroupId group, std::uint64_t bytes, std::uint64_t most) const {
  const auto all = to_save_.find(group);
  if (all == to_save_.end() || all->second <= most) return bytes;
  return static_cast<std::uint64_t>(static_cast<double>(bytes) * static_cast<double>(most) /
                                    static_cast<double>(all->second));
}

/// Of the segments that there are, the one that the rank is best given next; nothing: it has all.
std::optional<std::uint32_t> Reach::best(RankReach& reach, int node) const {
  reach.segments.resize(segments_.size());
  auto badness = [&](std::uint32_t i) {
    return std::tuple(segments_[i].node != node, segments_[i].ranks);
  };
  std::optional<std::uint32_t> best;
  for (std::uint32_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].size == 0 || reach.segments[i].state != State::kOut) continue;
    if (!best || badness(i) < badness(*best)) best = i;
  }
  return best;
}

std::vector<std::uint32_t> Reach::extend(RankId rank, std::uint64_t most, const Draw& draw) {
  std::vector<std::uint32_t> added;
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return added;
  RankReach& reach = it->second;
  for (auto& [node, need] : reach.needs) {
    const std::uint64_t wanted = share(reach.group, need.bytes, most);
    while (need.given < wanted) {
      std::optional<std::uint32_t> next = best(reach, node);
      const bool far = !next || segments_[*next].node != node;
      const bool shared = !next || segments_[*next].ranks > 0;
      std::optional<std::uint32_t> drawn;
      if (far || shared) drawn = draw(node, true);
      if (!drawn && far && shared) drawn = draw(node, false);
      if (drawn) next = drawn;
      if (!next) break;
      add(rank, *next);
      reach.segments[*next].given_for = node;
      need.given += segments_[*next].size;
      added.push_back(*next);
    }
  }
  return added;
}

bool Reach::add(RankId rank, std::uint32_t segment) {
  RankReach& reach = ranks_[rank];
  reach.segments.resize(segments_.size());
  if (segment >= segments_.size() || reach.segments[segment].state == State::kTold) return false;
  if (std::exchange(reach.segments[segment].state, State::kTold) == State::kDoubtful) return true;
  ++segments_[segment].ranks;
  return true;
}

void Reach::doubt(RankId rank) {
  if (const auto it = ranks_.find(rank); it != ranks_.end())
    for (Reached& each : it->second.segments)
      if (each.state == State::kTold) each.state = State::kDoubtful;
}

void Reach::forget(RankId rank) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return;
  const std::vector<Reached>& all = it->second.segments;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].state != State::kOut) --segments_[i].ranks;
  std::uint64_t& to_save = to_save_[it->second.group];
  for (const auto& [node, need] : it->second.needs) to_save -= need.bytes;
  if (to_save == 0) to_save_.erase(it->second.group);
  ranks_.erase(it);
}

bool Reach::reaches(RankId rank, std::uint32_t segment) const {
  const auto it = ranks_.find(rank);
  return it != ranks_.end() && segment < it->second.segments.size() &&
         it->second.segments[segment].state != State::kOut;
}

SegmentOrder Reach::order(RankId rank, int node) const {
  auto badness = [&](std::uint32_t i) {
    return std::tuple(!reaches(rank, i), segments_[i].node != node);
  };
  SegmentOrder order(segments_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return badness(a) < badness(b); });
  return order;
}

}  // namespace amem
