#include "daemon/memory/allocations.h"

#include <algorithm>
#include <iterator>

#include "common/rounding.h"

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

std::string_view to_string(SaveForm form) {
  switch (form) {
    case SaveForm::kAuto:
      return "auto";
    case SaveForm::kDense:
      return "dense";
    case SaveForm::kSparse:
      break;
  }
  return "sparse";
}

std::vector<Stored> Allocation::parts() const {
  if (!stored.empty()) return stored;
  std::vector<Stored> parts;
  std::uint64_t offset = 0;
  for (const Extent& extent : saved) {
    // Extents are whole chunks; the last may reach beyond the allocation.
    const std::uint64_t length = std::min(extent.length, size - offset);
    parts.push_back({length, length, false, 0});
    offset += length;
  }
  return parts;
}

bool Allocation::store(const Part& part, std::uint64_t chunk, Extents& left) {
  std::vector<Stored> all = parts();
  std::uint64_t offset = 0;
  std::size_t i = 0;
  while (i < all.size() && offset < part.offset) offset += all[i++].length;
  if (i == all.size() || offset != part.offset) return false;
  Stored& here = all[i];
  const bool told = here.sparse || here.checksum != 0;
  const bool fits =
      part.sparse ? part.bytes > 0 && part.bytes < here.length : part.bytes == here.length;
  if (told || !fits) return false;
  here = {here.length, part.bytes, part.sparse, part.checksum};
  Extent& extent = saved[i];
  const std::uint64_t used = round_up(part.bytes, chunk);
  if (used < extent.length) {
    left.push_back({extent.segment, extent.offset + used, extent.length - used});
    extent.length = used;
  }
  stored = std::move(all);
  return true;
}

std::uint64_t Allocation::saved_bytes() const {
  if (saved.empty()) return 0;
  if (stored.empty()) return size;
  std::uint64_t bytes = 0;
  for (const Stored& part : stored) bytes += part.bytes;
  return bytes;
}

bool Allocation::held_by(RankId rank) const { return contains(holders, rank); }
bool Allocation::pinned_by(RankId rank) const { return contains(pinners, rank); }

Allocation& Allocations::add(Allocation allocation) {
  allocation.id = next_id_++;
  const AllocationId id = allocation.id;
  Table& table = groups_[allocation.group];
  Allocation& added = table.emplace_hint(table.end(), id, std::move(allocation))->second;
  by_id_.emplace(id, &added);
  return added;
}

Allocation* Allocations::find(AllocationId id) {
  const auto it = by_id_.find(id);
  return it != by_id_.end() ? it->second : nullptr;
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
  Allocation* allocation = find(id);
  if (allocation == nullptr || !allocation->held_by(rank)) return not_held(id);
  std::erase(allocation->holders, rank);
  std::erase(allocation->pinners, rank);
  if (!allocation->holders.empty()) return std::optional<Allocation>();
  std::optional<Allocation> orphan(std::move(*allocation));
  by_id_.erase(id);
  const auto group = groups_.find(orphan->group);
  group->second.erase(id);
  if (group->second.empty()) groups_.erase(group);
  return orphan;
}

std::vector<Allocation> Allocations::drop_rank(RankId rank) {
  std::vector<Allocation> orphans;
  for (auto group = groups_.begin(); group != groups_.end();) {
    Table& table = group->second;
    for (auto it = table.begin(); it != table.end();) {
      Allocation& allocation = it->second;
      std::erase(allocation.holders, rank);
      std::erase(allocation.pinners, rank);
      if (allocation.holders.empty()) {
        by_id_.erase(allocation.id);
        orphans.push_back(std::move(allocation));
        it = table.erase(it);
      } else {
        ++it;
      }
    }
    group = table.empty() ? groups_.erase(group) : std::next(group);
  }
  return orphans;
}

Status Allocations::pin(AllocationId id, RankId rank) {
  Allocation* allocation = find(id);
  if (allocation == nullptr || !allocation->held_by(rank)) return not_held(id);
  if (!allocation->pinned_by(rank)) allocation->pinners.push_back(rank);
  return {};
}

namespace {

void count(const Allocation& allocation, Usage& usage) {
  ++usage.count;
  usage.allocated += allocation.size;
  if (allocation.resident()) usage.resident += allocation.size;
  usage.saved += allocation.saved_bytes();
  if (allocation.pinned()) usage.pinned += allocation.size;
}

}  // namespace

std::vector<const Allocation*> Allocations::select(const Filter& filter) const {
  std::vector<const Allocation*> found;
  for (const auto& [group, table] : groups_)
    for (const auto& [id, allocation] : table)
      if (filter(allocation)) found.push_back(&allocation);
  std::sort(found.begin(), found.end(),
            [](const Allocation* a, const Allocation* b) { return a->id < b->id; });
  return found;
}

std::vector<Allocation*> Allocations::of_group(GroupId group) {
  std::vector<Allocation*> found;
  const auto it = groups_.find(group);
  if (it == groups_.end()) return found;
  found.reserve(it->second.size());
  for (auto& [id, allocation] : it->second) found.push_back(&allocation);
  return found;
}

std::vector<const Allocation*> Allocations::of_group(GroupId group) const {
  const std::vector<Allocation*> found = const_cast<Allocations*>(this)->of_group(group);
  return {found.begin(), found.end()};
}

std::vector<Allocation*> Allocations::of_group(GroupId group, const Filter& filter) {
  std::vector<Allocation*> found = of_group(group);
  std::erase_if(found, [&](const Allocation* a) { return !filter(*a); });
  return found;
}

bool Allocations::any(GroupId group, const Filter& filter) const {
  const auto it = groups_.find(group);
  return it != groups_.end() &&
         std::any_of(it->second.begin(), it->second.end(),
                     [&](const auto& entry) { return filter(entry.second); });
}

Usage Allocations::usage(const Filter& filter) const {
  Usage usage;
  for (const auto& [group, table] : groups_)
    for (const auto& [id, allocation] : table)
      if (filter(allocation)) count(allocation, usage);
  return usage;
}

Usage Allocations::usage(GroupId group, const Filter& filter) const {
  Usage usage;
  const auto it = groups_.find(group);
  if (it == groups_.end()) return usage;
  for (const auto& [id, allocation] : it->second)
    if (filter(allocation)) count(allocation, usage);
  return usage;
}

}  // namespace amem
