#include "daemon/fleet/fleet_cut.h"

#include <algorithm>
#include <cstring>

namespace amem {
namespace {

CutReport report_of(const v1::FleetRank& told) {
  CutReport report;
  report.permits = told.permits();
  report.captures = told.captures();
  for (const v1::FleetDevice& device : told.devices()) {
    CutReport::Device& each = report.devices.emplace_back();
    const std::size_t length = std::min(device.uuid().size(), each.device.bytes.size());
    std::memcpy(each.device.bytes.data(), device.uuid().data(), length);
    each.busy = device.busy();
    each.waiting = device.waiting();
    each.ready = device.ready();
  }
  return report;
}

}  // namespace

RankId FleetCut::id(const Rank& rank) {
  const auto [it, added] = ids_.try_emplace(rank, next_id_);
  if (added) ranks_[next_id_++] = rank;
  return it->second;
}

void FleetCut::quiesces(std::size_t node, const v1::FleetQuiesces& ranks, Time now) {
  if (awaited_.erase(node) == 0) return;
  for (const std::uint32_t rank : ranks.ranks()) id({node, rank});
  begin_if_all_have_told(now);
}

void FleetCut::begin_if_all_have_told(Time now) {
  if (cut_ || !awaited_.empty()) return;
  std::vector<RankId> all;
  for (const auto& [id, rank] : ranks_) all.push_back(id);
  cut_.emplace(all, stall_, now);
  for (auto& [rank, report] : early_) cut_->report(ids_.at(rank), std::move(report), now);
  early_.clear();
}

void FleetCut::reported(std::size_t node, const v1::FleetRank& told, Time now) {
  const Rank rank{node, told.rank()};
  const auto known = ids_.find(rank);
  if (known == ids_.end()) return;
  if (told.gone()) {
    if (cut_) cut_->forget(known->second);
    early_.erase(rank);
    ranks_.erase(known->second);
    ids_.erase(known);
    return;
  }
  if (cut_)
    cut_->report(known->second, report_of(told), now);
  else
    early_[rank] = report_of(told);
}

void FleetCut::forget(std::size_t node, Time now) {
  awaited_.erase(node);
  std::vector<std::uint32_t> gone;
  for (const auto& [rank, id] : ids_)
    if (rank.first == node) gone.push_back(rank.second);
  for (const std::uint32_t rank : gone) {
    v1::FleetRank told;
    told.set_rank(rank);
    told.set_gone(true);
    reported(node, told, now);
  }
  begin_if_all_have_told(now);
}

std::vector<FleetCut::Permit> FleetCut::decide(Time now) {
  std::vector<Permit> permits;
  if (!cut_) return permits;
  for (const Cut::Permit& permit : cut_->decide(now)) {
    const Rank& rank = ranks_.at(permit.rank);
    Permit& each = permits.emplace_back();
    each.node = rank.first;
    each.permit.set_rank(rank.second);
    each.permit.set_device(permit.device.bytes.data(), permit.device.bytes.size());
    each.permit.set_in_turn(permit.in_turn);
  }
  return permits;
}

}  // namespace amem
