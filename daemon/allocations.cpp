#include "daemon/allocations.h"

#include <algorithm>

namespace amem {
namespace {

bool contains(const std::vector<RankId>& ranks, RankId rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// Compares every byte, so that the time taken tells nothing about the token.
bool same_token(const Token& a, const Token& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

Status not_held(AllocationId id) {
  return {Code::kNotFound, "this rank holds no allocation " + std::to_string(id)};
}

}  // namespace

bool Allocation::held_by(RankId rank) const { return contains(holders, rank); }
bool Allocation::pinned_by(RankId rank) const { return contains(pinners, rank); }

Allocation& Allocations::add(Allocation allocation) {
  allocation.id = next_id_++;
  const AllocationId id = allocation.id;
  return table_.emplace_hint(table_.end(), id, std::move(allocation))->second;
}

Allocation* Allocations::find(AllocationId id) {
  const auto it = table_.find(id);
  return it != table_.end() ? &it->second : nullptr;
}

Result<Allocation*> Allocations::redeem(AllocationId id, const Token& token, GroupId group,
                                        RankId rank, bool loaded) {
  Allocation* allocation = find(id);
  if (allocation == nullptr)
    return Status(Code::kNotFound, "allocation " + std::to_string(id) +
                                       " of this ticket does not exist; its holders have freed it");
  if (allocation->group != group || !same_token(allocation->token, token))
    return Status(Code::kPermissionDenied, "the ticket for allocation " + std::to_string(id) +
                                               " is not one of this rank's group");
  const bool coming_back = allocation->away && !allocation->stayed && !loaded;
  if (!allocation->resident() || coming_back)
    return Status(Code::kFailedPrecondition, "allocation " + std::to_string(id) +
                                                 " is paused with its tag '" + allocation->tag +
                                                 "'; resume that first");
  if (!allocation->held_by(rank)) allocation->holders.push_back(rank);
  return allocation;
}

Result<std::optional<Allocation>> Allocations::free(AllocationId id, RankId rank) {
  const auto it = table_.find(id);
  if (it == table_.end() || !it->second.held_by(rank)) return not_held(id);
  std::erase(it->second.holders, rank);
  std::erase(it->second.pinners, rank);
  if (!it->second.holders.empty()) return std::optional<Allocation>();
  std::optional<Allocation> orphan(std::move(it->second));
  table_.erase(it);
  return orphan;
}

std::vector<Allocation> Allocations::drop_rank(RankId rank) {
  std::vector<Allocation> orphans;
  for (auto it = table_.begin(); it != table_.end();) {
    Allocation& allocation = it->second;
    std::erase(allocation.holders, rank);
    std::erase(allocation.pinners, rank);
    if (allocation.holders.empty()) {
      orphans.push_back(std::move(allocation));
      it = table_.erase(it);
    } else {
      ++it;
    }
  }
  return orphans;
}

Status Allocations::pin(AllocationId id, RankId rank) {
  Allocation* allocation = find(id);
  if (allocation == nullptr || !allocation->held_by(rank)) return not_held(id);
  if (!allocation->pinned_by(rank)) allocation->pinners.push_back(rank);
  return {};
}

std::vector<Allocation*> Allocations::select(const Filter& filter) {
  std::vector<Allocation*> found;
  for (auto& [id, allocation] : table_)
    if (filter(allocation)) found.push_back(&allocation);
  return found;
}

std::vector<const Allocation*> Allocations::select(const Filter& filter) const {
  std::vector<const Allocation*> found;
  for (const auto& [id, allocation] : table_)
    if (filter(allocation)) found.push_back(&allocation);
  return found;
}

std::vector<Allocation*> Allocations::of_group(GroupId group) {
  return select([group](const Allocation& a) { return a.group == group; });
}

std::vector<const Allocation*> Allocations::of_group(GroupId group) const {
  return select([group](const Allocation& a) { return a.group == group; });
}

bool Allocations::any(GroupId group, const Filter& filter) const {
  return std::any_of(table_.begin(), table_.end(), [&](const auto& entry) {
    return entry.second.group == group && filter(entry.second);
  });
}

Usage Allocations::usage(const Filter& filter) const {
  Usage usage;
  for (const auto& [id, allocation] : table_) {
    if (!filter(allocation)) continue;
    ++usage.count;
    usage.allocated += allocation.size;
    if (allocation.resident()) usage.resident += allocation.size;
    if (!allocation.saved.empty()) usage.saved += allocation.size;
    if (allocation.pinned()) usage.pinned += allocation.size;
  }
  return usage;
}

}  // namespace amem
