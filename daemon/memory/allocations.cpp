#include "daemon/memory/allocations.h"

#include <algorithm>
#include <iterator>
#include <queue>
#include <span>

#include "common/numbers.h"
#include "daemon/base/ids.h"

namespace amem {
namespace {

bool contains(const std::vector<RankId>& ranks, RankId rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// Charges the owner for a further rank that has it. The table's entry counts the first.
Result<Charge> charge_for_another(const Allocation& allocation) {
  const std::shared_ptr<Account>& owner = allocation.charge.account();
  return owner != nullptr ? owner->take(Resource::kAllocations, 1) : Result<Charge>(Charge());
}

void forget_tag(std::map<std::string, std::size_t>& tags, const std::string& tag) {
  const auto count = tags.find(tag);
  if (--count->second == 0) tags.erase(count);
}

Status not_known(AllocationId id) {
  return {Code::kNotFound, "this rank does not hold allocation " + std::to_string(id)};
}

/// `loaded`: memory that returns has its bytes.
Status check_ticket(const Allocation& allocation, const Token& token, bool loaded) {
  if (!same_token(allocation.token, token))
    return {Code::kPermissionDenied, "the ticket for allocation " + std::to_string(allocation.id) +
                                         " is not the ticket that its owner got"};
  const bool coming_back = allocation.paused && !allocation.stayed && !loaded;
  if (!allocation.resident() || coming_back)
    return {Code::kFailedPrecondition, "allocation " + std::to_string(allocation.id) +
                                           " is paused with its tag '" + allocation.tag +
                                           "'. Resume this tag first"};
  return {};
}

}  // namespace

Status freed(AllocationId id) {
  return {Code::kNotFound, "allocation " + std::to_string(id) +
                               " of this ticket does not exist. Its sharers have freed it"};
}

std::string_view to_string(PinReason reason) {
  switch (reason) {
    case PinReason::kNic:
      return "NIC";
    case PinReason::kGdrCopy:
      return "GDRCopy";
    case PinReason::kDmaBuf:
      return "dma-buf";
    case PinReason::kP2pTokens:
      return "P2P tokens";
    case PinReason::kStorage:
      return "GPUDirect Storage";
    case PinReason::kUnknown:
      break;
  }
  return "unknown";
}

std::vector<Stored> Allocation::pieces() const {
  if (!saved.pieces.empty()) return saved.pieces;
  std::vector<Stored> pieces;
  std::uint64_t offset = 0;
  for (const Extent& extent : saved.extents) {
    // Extents are whole chunks; the last may reach beyond the allocation.
    const std::uint64_t length = std::min(extent.length, size - offset);
    pieces.push_back({length, length, Form::kDense, 0});
    offset += length;
  }
  return pieces;
}

bool Allocation::store(const Piece& piece, std::uint64_t chunk, Extents& left) {
  std::vector<Stored> all = pieces();
  std::uint64_t offset = 0;
  std::size_t i = 0;
  while (i < all.size() && offset < piece.offset) offset += all[i++].length;
  if (i == all.size() || offset != piece.offset) return false;
  Stored& here = all[i];
  const bool told = here.form != Form::kDense || here.checksum != 0 || here.hashed;
  Extent& extent = saved.extents[i];
  const bool can_be = rule(piece.form).shorter ? piece.bytes > 0 && piece.bytes < here.length
                                               : piece.bytes == here.length;
  if (told || !can_be || piece.bytes > extent.length || piece.unchanged > here.length) return false;
  here = {here.length, piece.bytes, piece.form, piece.checksum, piece.hashed, piece.unchanged};
  const std::uint64_t used = round_up(piece.bytes, chunk);
  if (used < extent.length) {
    left.push_back({extent.segment, extent.offset + used, extent.length - used});
    extent.length = used;
  }
  saved.pieces = std::move(all);
  return true;
}

std::uint64_t Allocation::hashed_by() const {
  if (!saved.sent) return saved.since;
  const auto hashed = [](const Stored& each) { return each.hashed && each.form == Form::kDense; };
  const bool all = std::all_of(saved.pieces.begin(), saved.pieces.end(), hashed);
  return !saved.pieces.empty() && all ? saved.attempt : 0;
}

bool Allocation::fits() const {
  for (std::size_t i = 0; i < saved.pieces.size(); ++i)
    if (!rule(saved.pieces[i].form).shorter && saved.pieces[i].length > saved.extents[i].length)
      return false;
  return true;
}

std::uint64_t Allocation::saved_bytes() const {
  if (saved.empty()) return 0;
  if (saved.pieces.empty()) return size;
  std::uint64_t bytes = 0;
  for (const Stored& piece : saved.pieces) bytes += piece.bytes;
  return bytes;
}

bool Allocation::shared_by(RankId rank) const { return contains(sharers, rank); }
bool Allocation::pinned_by(RankId rank) const {
  return std::any_of(pinners.begin(), pinners.end(),
                     [rank](const Pinner& pinner) { return pinner.rank == rank; });
}
bool Allocation::opened_by(RankId rank) const {
  return std::any_of(guests.begin(), guests.end(), [&](const Guest& g) { return g.rank == rank; });
}

void Allocations::enter(SumsByDevice& sums, const Allocation& a, int times) {
  const auto add = [&](std::uint64_t& sum) { times > 0 ? sum += a.size : sum -= a.size; };
  TagSums& its = sums[a.device][a.tag];
  add(its.all);
  if (a.resident()) add(its.resident);
  if (a.may_leave()) add(its.may_leave);
  if (a.can_leave()) add(its.can_leave);
  if (its.all > 0) return;
  const auto device = sums.find(a.device);
  device->second.erase(a.tag);
  if (device->second.empty()) sums.erase(device);
}

const SumsByDevice& Allocations::sums(GroupId group) const {
  static const SumsByDevice& none = *new SumsByDevice;
  const auto it = groups_.find(group);
  return it != groups_.end() ? it->second.sums : none;
}

Allocation& Allocations::add(Allocation allocation) {
  if (allocation.id == 0) allocation.id = next_id_++;
  const AllocationId id = allocation.id;
  Table& table = groups_[allocation.group];
  table.in_order.clear();
  Allocation& added =
      table.by_id.emplace_hint(table.by_id.end(), id, std::move(allocation))->second;
  by_id_.emplace(id, &added);
  ++table.tags[added.tag];
  enter(table.sums, added, 1);
  // One from before a restart may have several: they are charged for, quota or not.
  Amounts one;
  one[Resource::kAllocations] = 1;
  const std::shared_ptr<Account>& owner = added.charge.account();
  const auto charge = [&](Index& index, RankId rank, bool first) {
    index[rank].emplace(id, owner != nullptr && !first ? owner->charge(one) : Charge());
  };
  for (const RankId rank : added.sharers) charge(shared_, rank, rank == added.sharers.front());
  for (const Guest& guest : added.guests) charge(opened_, guest.rank, false);
  return added;
}

Allocation* Allocations::find(AllocationId id) {
  const auto it = by_id_.find(id);
  return it != by_id_.end() ? it->second : nullptr;
}

Result<Allocation*> Allocations::redeem(AllocationId id, const Token& token, GroupId group,
                                        RankId rank, bool loaded) {
  Allocation* allocation = find(id);
  if (allocation == nullptr) return freed(id);
  if (allocation->group != group)
    return Status(Code::kPermissionDenied,
                  "the ticket for allocation " + std::to_string(id) + " belongs to another group");
  if (Status status = check_ticket(*allocation, token, loaded); !status.ok()) return status;
  if (allocation->shared_by(rank)) return allocation;
  Result<Charge> charge = charge_for_another(*allocation);
  if (!charge.ok()) return charge.status();
  allocation->sharers.push_back(rank);
  shared_[rank].emplace(id, std::move(charge).value());
  return allocation;
}

Result<Allocation*> Allocations::open(AllocationId id, const Token& token, const Guest& guest,
                                      bool loaded) {
  Allocation* allocation = find(id);
  if (allocation == nullptr) return freed(id);
  if (Status status = check_ticket(*allocation, token, loaded); !status.ok()) return status;
  if (allocation->opened_by(guest.rank)) return allocation;
  if (allocation->group == kNoGroup) return freed(id);
  Result<Charge> charge = charge_for_another(*allocation);
  if (!charge.ok()) return charge.status();
  move(*allocation, [&] { allocation->guests.push_back(guest); });
  opened_[guest.rank].emplace(id, std::move(charge).value());
  return allocation;
}

std::vector<const Allocation*> Allocations::shared_by(RankId rank) const {
  std::vector<const Allocation*> found;
  if (const auto it = shared_.find(rank); it != shared_.end())
    for (const auto& [id, charge] : it->second) found.push_back(by_id_.at(id));
  return found;
}

std::vector<Allocation*> Allocations::opened_by(RankId rank) {
  std::vector<Allocation*> found;
  if (const auto it = opened_.find(rank); it != opened_.end())
    for (const auto& [id, charge] : it->second) found.push_back(find(id));
  return found;
}

std::vector<const Allocation*> Allocations::opened_by(RankId rank) const {
  const std::vector<Allocation*> found = const_cast<Allocations*>(this)->opened_by(rank);
  return {found.begin(), found.end()};
}

void Allocations::set_paused(RankId rank, bool paused) {
  for (Allocation* allocation : opened_by(rank))
    for (Guest& guest : allocation->guests)
      if (guest.rank == rank) guest.paused = paused;
}

void Allocations::forget(Index& index, RankId rank, AllocationId id) {
  const auto has = index.find(rank);
  has->second.erase(id);
  if (has->second.empty()) index.erase(has);
}

void Allocations::detach(Allocation& allocation, RankId rank) {
  const auto is_rank = [rank](const Guest& guest) { return guest.rank == rank; };
  std::size_t opened = 0;
  move(allocation, [&] {
    std::erase_if(allocation.pinners, [rank](const Pinner& pinner) { return pinner.rank == rank; });
    opened = std::erase_if(allocation.guests, is_rank);
  });
  if (opened > 0) forget(opened_, rank, allocation.id);
  if (std::erase(allocation.sharers, rank) > 0) forget(shared_, rank, allocation.id);
  // Who has what it had made no more has bound none of it.
  if (allocation.maker == rank) allocation.maker = 0;
}

/// After somebody has let go of it: takes it out of its table when nobody has it now, and makes it
/// nobody's when only guests have. The caller erases a table that is empty.
std::optional<Allocation> Allocations::drop_or_disown(
    Table& table, std::map<AllocationId, Allocation>::iterator it) {
  Allocation& allocation = it->second;
  if (!allocation.sharers.empty()) return std::nullopt;
  if (!allocation.opened()) {
    forget_tag(table.tags, allocation.tag);
    enter(table.sums, allocation, -1);
    std::optional<Allocation> gone(std::move(allocation));
    by_id_.erase(gone->id);
    table.in_order.clear();
    table.by_id.erase(it);
    return gone;
  }
  if (allocation.group == kNoGroup) return std::nullopt;
  allocation.group = kNoGroup;
  Table& nobodys = groups_[kNoGroup];
  forget_tag(table.tags, allocation.tag);
  ++nobodys.tags[allocation.tag];
  enter(table.sums, allocation, -1);
  enter(nobodys.sums, allocation, 1);
  table.in_order.clear();
  nobodys.in_order.clear();
  nobodys.by_id.insert(table.by_id.extract(it));  // it stays where it is in memory
  return std::nullopt;
}

Result<std::optional<Allocation>> Allocations::free(AllocationId id, RankId rank) {
  Allocation* allocation = find(id);
  if (allocation == nullptr || !(allocation->shared_by(rank) || allocation->opened_by(rank)))
    return not_known(id);
  detach(*allocation, rank);
  const auto group = groups_.find(allocation->group);
  std::optional<Allocation> unshared = drop_or_disown(group->second, group->second.by_id.find(id));
  if (group->second.by_id.empty()) groups_.erase(group);
  return unshared;
}

std::vector<Allocation> Allocations::drop_rank(RankId rank) {
  std::vector<AllocationId> ids;
  for (const Index* index : {&shared_, &opened_})
    if (const auto has = index->find(rank); has != index->end())
      for (const auto& [id, charge] : has->second) ids.push_back(id);
  std::vector<Allocation> dropped;
  for (const AllocationId id : ids) find(id)->sharers_known = false;
  for (const AllocationId id : ids)
    if (Result<std::optional<Allocation>> freed = free(id, rank); freed.ok() && freed.value())
      dropped.push_back(std::move(*freed.value()));
  return dropped;
}

Status Allocations::pin(AllocationId id, const Pinner& pinner) {
  Allocation* allocation = find(id);
  if (allocation == nullptr || !allocation->shared_by(pinner.rank)) return not_known(id);
  std::vector<Pinner>& pinners = allocation->pinners;
  if (std::find(pinners.begin(), pinners.end(), pinner) == pinners.end())
    move(*allocation, [&] { pinners.push_back(pinner); });
  return {};
}

Status Allocations::unpin(AllocationId id, const Pinner& pinner) {
  Allocation* allocation = find(id);
  if (allocation == nullptr || !allocation->shared_by(pinner.rank)) return not_known(id);
  std::size_t unpinned = 0;
  move(*allocation, [&] { unpinned = std::erase(allocation->pinners, pinner); });
  if (unpinned > 0) return {};
  return {Code::kNotFound, "this rank has not pinned allocation " + std::to_string(id) + " (" +
                               std::string(to_string(pinner.reason)) + ")"};
}

bool Allocations::too_many_tags(GroupId group, const std::string& tag) const {
  const auto it = groups_.find(group);
  return it != groups_.end() && it->second.tags.size() >= kMostTags &&
         !it->second.tags.contains(tag);
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

const std::vector<Allocation*>& Allocations::walk(const Table& table) {
  if (table.in_order.size() == table.by_id.size()) return table.in_order;
  table.in_order.reserve(table.by_id.size());
  for (const auto& [id, allocation] : table.by_id)
    table.in_order.push_back(const_cast<Allocation*>(&allocation));
  return table.in_order;
}

std::vector<const Allocation*> Allocations::some(const std::function<bool(GroupId)>& of,
                                                 AllocationId first, std::size_t most) const {
  using Rest = std::span<Allocation* const>;
  const auto later = [](const Rest& a, const Rest& b) { return a.front()->id > b.front()->id; };
  std::priority_queue<Rest, std::vector<Rest>, decltype(later)> rests(later);
  for (const auto& [group, table] : groups_) {
    if (!of(group)) continue;
    const std::vector<Allocation*>& all = walk(table);
    const auto begin =
        std::lower_bound(all.begin(), all.end(), first,
                         [](const Allocation* a, AllocationId id) { return a->id < id; });
    if (begin != all.end()) rests.push(Rest(begin, all.end()));
  }
  std::vector<const Allocation*> found;
  while (!rests.empty() && found.size() < most) {
    const Rest rest = rests.top();
    rests.pop();
    found.push_back(rest.front());
    if (rest.size() > 1) rests.push(rest.subspan(1));
  }
  return found;
}

std::vector<const Allocation*> Allocations::select(const Filter& filter) const {
  std::vector<const Allocation*> found;
  for (const auto& [group, table] : groups_)
    std::copy_if(walk(table).begin(), walk(table).end(), std::back_inserter(found),
                 [&](const Allocation* a) { return filter(*a); });
  std::sort(found.begin(), found.end(),
            [](const Allocation* a, const Allocation* b) { return a->id < b->id; });
  return found;
}

std::vector<Allocation*> Allocations::of_group(GroupId group) {
  const auto it = groups_.find(group);
  return it != groups_.end() ? walk(it->second) : std::vector<Allocation*>();
}

std::vector<const Allocation*> Allocations::of_group(GroupId group) const {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return {};
  return {walk(it->second).begin(), walk(it->second).end()};
}

std::vector<Allocation*> Allocations::of_group(GroupId group, const Filter& filter) {
  std::vector<Allocation*> found = of_group(group);
  std::erase_if(found, [&](const Allocation* a) { return !filter(*a); });
  return found;
}

bool Allocations::any(GroupId group, const Filter& filter) const {
  const auto it = groups_.find(group);
  return it != groups_.end() && std::any_of(walk(it->second).begin(), walk(it->second).end(),
                                            [&](const Allocation* a) { return filter(*a); });
}

Usage Allocations::usage(const Filter& filter) const {
  Usage usage;
  for (const auto& [group, table] : groups_)
    for (const Allocation* a : walk(table))
      if (filter(*a)) count(*a, usage);
  return usage;
}

Usage Allocations::usage(GroupId group, const Filter& filter) const {
  Usage usage;
  const auto it = groups_.find(group);
  if (it == groups_.end()) return usage;
  for (const Allocation* a : walk(it->second))
    if (filter(*a)) count(*a, usage);
  return usage;
}

}  // namespace amem
