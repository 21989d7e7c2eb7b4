#include "daemon/memory/reach.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace amem {

void Reach::add_segment(std::uint64_t size, int node) { segments_.push_back({size, node, 0}); }

void Reach::keep(RankId rank, int node, std::uint64_t bytes) {
  places_[rank].needs[node].bytes += bytes;
}

void Reach::let_go(RankId rank, int node, std::uint64_t bytes) {
  Need& need = places_[rank].needs[node];
  need.bytes -= std::min(need.bytes, bytes);
}

std::vector<std::uint32_t> Reach::extend(RankId rank) {
  std::vector<std::uint32_t> added;
  const auto it = places_.find(rank);
  if (it == places_.end()) return added;
  Place& place = it->second;
  for (auto& [node, need] : place.needs) {
    while (need.given < need.bytes && place.count < segments_.size()) {
      place.segments.resize(segments_.size());
      std::uint32_t best = 0;
      auto badness = [&, node = node](std::uint32_t i) {
        return std::tuple(place.segments[i] != State::kOut, segments_[i].node != node,
                          segments_[i].ranks);
      };
      for (std::uint32_t i = 1; i < segments_.size(); ++i)
        if (badness(i) < badness(best)) best = i;
      add(rank, best);
      need.given += segments_[best].size;
      added.push_back(best);
    }
  }
  return added;
}

bool Reach::add(RankId rank, std::uint32_t segment) {
  Place& place = places_[rank];
  place.segments.resize(segments_.size());
  if (segment >= segments_.size() || place.segments[segment] == State::kTold) return false;
  if (std::exchange(place.segments[segment], State::kTold) == State::kDoubtful) return true;
  ++place.count;
  ++segments_[segment].ranks;
  return true;
}

void Reach::doubt(RankId rank) {
  if (const auto it = places_.find(rank); it != places_.end())
    std::replace(it->second.segments.begin(), it->second.segments.end(), State::kTold,
                 State::kDoubtful);
}

void Reach::forget(RankId rank) {
  const auto it = places_.find(rank);
  if (it == places_.end()) return;
  const std::vector<State>& states = it->second.segments;
  for (std::size_t i = 0; i < states.size(); ++i)
    if (states[i] != State::kOut) --segments_[i].ranks;
  places_.erase(it);
}

SegmentOrder Reach::order(RankId rank, int node) const {
  const auto it = places_.find(rank);
  auto badness = [&](std::uint32_t i) {
    const bool reached = it != places_.end() && i < it->second.segments.size() &&
                         it->second.segments[i] != State::kOut;
    return std::tuple(!reached, segments_[i].node != node);
  };
  SegmentOrder order(segments_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return badness(a) < badness(b); });
  return order;
}

}  // namespace amem
