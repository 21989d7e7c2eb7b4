#include "daemon/memory/pools.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "amem/v1/record.pb.h"
#include "daemon/base/units.h"

namespace amem {
namespace {

/// Whoever waited for more has been told by then, and others may try.
constexpr Duration kRefusalHolds = std::chrono::seconds(1);

}  // namespace

void OwnPool::give_back(const Extents& freed) {
  if (freed.empty()) return;
  if (Status status = extents.give_back(freed); !status.ok())
    spdlog::error("pool: {}", status.text());
}

void Pools::add(PoolSegment segment, std::uint64_t id) {
  std::uint64_t& awaited = segment.made == PoolSegment::Made::kAnew   ? renewing_
                           : segment.made == PoolSegment::Made::kMore ? making_
                                                                      : starting_;
  awaited -= std::min(awaited, segment.size);
  RecordedSegment recorded{std::move(segment), id, {}, {}};
  if (recorded.segment.fd)
    recorded.holder_entry = record_.hold(HolderKind::kSegment, id, recorded.segment.fd);
  record_.flush();
  write(recorded, std::nullopt, std::nullopt);
  put_in_stock(std::move(recorded), std::nullopt);
  shrink();
}

std::uint64_t Pools::limit(const Bounds& bounds) {
  bounds_ = bounds;
  shrink();
  starting_ = bounds_.reserve - std::min(bounds_.reserve, all());
  return starting_;
}

std::uint64_t Pools::excess() const { return all() - std::min(all(), bounds_.most); }

void Pools::shrink() {
  if (excess() == 0) return;
  const auto less = [](const Stocked& a, const Stocked& b) {
    return a.of.segment.size < b.of.segment.size;
  };
  while (const std::uint64_t over = excess()) {
    if (stock_.empty()) return;
    // The largest that is too much as a whole; else the smallest.
    const auto fits = [over](const Stocked& s) { return s.of.segment.size <= over; };
    auto chosen = stock_.end();
    for (auto it = stock_.begin(); it != stock_.end(); ++it)
      if (fits(*it) && (chosen == stock_.end() || less(*chosen, *it))) chosen = it;
    if (chosen == stock_.end()) chosen = std::min_element(stock_.begin(), stock_.end(), less);
    release_(std::move(chosen->of.segment));
    stock_.erase(chosen);
  }
  const std::uint64_t rest = (bounds_.reserve - std::min(bounds_.reserve, all())) / chunk_ * chunk_;
  if (rest == 0) return;
  PoolSegment wanted;
  wanted.size = rest;
  renewing_ += rest;
  renew_(std::move(wanted));
}

void Pools::write(RecordedSegment& segment, const std::optional<Owner>& owner,
                  std::optional<std::uint32_t> drawn) {
  v1::record::Segment row;
  row.set_size(segment.segment.size);
  row.set_place(number_of(segment.segment.place));
  row.set_numa_node(segment.segment.numa_node);
  if (owner) {
    row.mutable_owner()->set_uid(owner->uid);
    row.mutable_owner()->set_compartment(owner->compartment);
  }
  row.set_drawn(drawn.has_value());
  row.set_index(drawn.value_or(0));
  (void)record_.write(segment.row, RowKind::kSegment, segment.id, row);
}

void Pools::restore(RecordedSegment segment, const std::optional<Owner>& last) {
  put_in_stock(std::move(segment), last);
}

void Pools::restore(RecordedSegment segment, const std::shared_ptr<Account>& account) {
  OwnPool& pool = of(account);
  Amounts amounts;
  amounts[Resource::kPoolBytes] = segment.segment.size;
  pool.extents.add_segment(segment.segment.size);
  pool.reach.add_segment(segment.segment.size, segment.segment.numa_node);
  pool.segments.push_back({std::move(segment), account->charge(amounts)});
}

void Pools::restored() {
  std::vector<std::shared_ptr<Account>> all;
  for (const auto& [account, pool] : pools_) all.push_back(account);
  for (const auto& account : all) dissolve_if_idle(account);
}

std::uint64_t Pools::coming(const Account& account) const {
  const std::uint64_t most = account.most(Resource::kPoolBytes);
  const std::uint64_t used = account.used(Resource::kPoolBytes);
  return std::min(coming(), most - std::min(most, used));
}

OwnPool& Pools::of(const std::shared_ptr<Account>& account) {
  const auto [it, added] = pools_.try_emplace(account, chunk_);
  if (added) it->second.needed = Clock::now();
  return it->second;
}

OwnPool* Pools::find(const std::shared_ptr<Account>& account) {
  return const_cast<OwnPool*>(std::as_const(*this).find(account));
}

const OwnPool* Pools::find(const std::shared_ptr<Account>& account) const {
  const auto it = pools_.find(account);
  return it != pools_.end() ? &it->second : nullptr;
}

void Pools::leave(const std::shared_ptr<Account>& account) {
  --of(account).processes;
  dissolve_if_idle(account);
}

void Pools::saved_less(const std::shared_ptr<Account>& account) {
  of(account).needed = Clock::now();
  dissolve_if_idle(account);
}

void Pools::dissolve_if_idle(const std::shared_ptr<Account>& account) {
  const auto it = pools_.find(account);
  if (it == pools_.end() || it->second.processes > 0 || it->second.used() > 0) return;
  for (OwnPool::Drawn& segment : it->second.segments) {
    if (segment.of.segment.size == 0) continue;  // it has left, or a restart has lost it
    write(segment.of, account->owner(), std::nullopt);
    put_in_stock(std::move(segment.of), account->owner());
  }
  pools_.erase(it);
  shrink();
}

/// What the owner had itself it gets before what nobody has had, so that little has to be made anew
/// for others.
int Pools::rank(const Stocked& stocked, const Owner& owner, int node, bool only) {
  const bool near = stocked.of.segment.numa_node == node;
  if ((only && !near) || was_others(stocked, owner)) return 0;
  return 1 + (near ? 2 : 0) + (stocked.last ? 1 : 0);
}

std::optional<std::uint32_t> Pools::draw(const std::shared_ptr<Account>& account, OwnPool& pool,
                                         int node, bool only) {
  const auto rank_of = [&](const Stocked& stocked) {
    return rank(stocked, account->owner(), node, only);
  };
  const auto best =
      std::max_element(stock_.begin(), stock_.end(),
                       [&](const auto& a, const auto& b) { return rank_of(a) < rank_of(b); });
  if (best == stock_.end() || rank_of(*best) == 0) return std::nullopt;
  const PoolSegment& segment = best->of.segment;
  Result<Charge> charge = account->take(Resource::kPoolBytes, segment.size);
  if (!charge.ok()) return std::nullopt;
  const std::uint32_t index = next_number(pool);
  pool.extents.restore(index, segment.size);
  pool.reach.restore(index, segment.size, segment.numa_node);
  write(best->of, account->owner(), index);
  pool.segments[index] = {std::move(best->of), std::move(charge).value()};
  stock_.erase(best);
  return index;
}

/// The number of one that has left is free: all ranks that had it have said that they have it no
/// more.
std::uint32_t Pools::next_number(OwnPool& pool) {
  const auto free = std::find_if(pool.segments.begin(), pool.segments.end(),
                                 [](const OwnPool::Drawn& each) { return each.left; });
  if (free != pool.segments.end()) return static_cast<std::uint32_t>(free - pool.segments.begin());
  pool.segments.emplace_back();
  pool.reach.add_segment(0, -1);
  return pool.extents.add_segment(0);
}

/// The number of a namespace may come again as another's, so what a compartment had is nobody's.
bool Pools::was_others(const Stocked& stocked, const Owner& owner) {
  return stocked.last && (*stocked.last != owner || !stocked.last->compartment.empty());
}

std::uint64_t Pools::renew_one(const Account& account, int node, bool only) {
  const auto it = std::find_if(stock_.begin(), stock_.end(), [&](const Stocked& stocked) {
    return was_others(stocked, account.owner()) && (!only || stocked.of.segment.numa_node == node);
  });
  if (it == stock_.end()) return 0;
  const std::uint64_t size = it->of.segment.size;
  Amounts amounts;
  amounts[Resource::kPoolBytes] = size;
  if (!account.has_space(amounts)) return 0;
  renew_(std::move(it->of.segment));
  stock_.erase(it);
  renewing_ += size;
  return size;
}

std::vector<std::uint32_t> Pools::extend(const std::shared_ptr<Account>& account, RankId rank) {
  OwnPool& pool = of(account);
  std::uint64_t most = pool.extents.total();
  for (const Stocked& stocked : stock_) most += stocked.of.segment.size;
  return pool.reach.extend(rank, std::min(most, account->most(Resource::kPoolBytes)),
                           [&](int node, bool only) {
                             const auto drawn = draw(account, pool, node, only);
                             if (!drawn) renew_one(*account, node, only);
                             return drawn;
                           });
}

Status Pools::make_space(const std::shared_ptr<Account>& account, std::uint64_t bytes) {
  OwnPool& pool = of(account);
  pool.needed = Clock::now();
  keep_leaving(account, pool, bytes);
  while (pool.extents.available() < bytes) {
    const std::optional<RetainedCopy> oldest = pool.retained.take_oldest();
    if (!oldest) break;
    pool.give_back(oldest->extents);
  }
  while (pool.extents.available() < bytes && draw(account, pool, -1, false)) continue;
  if (pool.extents.available() >= bytes) return {};
  std::uint64_t renewed = renewing_;
  const std::uint64_t missing = bytes - pool.extents.available();
  while (renewed < missing)
    if (const std::uint64_t size = renew_one(*account, -1, false); size > 0)
      renewed += size;
    else
      break;
  std::string text = "the host pool is too small: " + to_string(account->owner()) + " has " +
                     format_size(pool.extents.available()) + " of " +
                     format_size(pool.extents.total()) + " free, but " + format_size(bytes) +
                     " are needed";
  if (const std::uint64_t most = account->most(Resource::kPoolBytes); most < total())
    text += ". This owner may have " + format_size(most) + " of " + format_size(total()) +
            " (quotas.pool)";
  if (renewed > 0)
    text +=
        ". amemd prepares " + format_size(renewed) + " that other users had. Try again in a moment";
  return {Code::kResourceExhausted, text};
}

void Pools::draw(const std::shared_ptr<Account>& account, std::uint64_t bytes) {
  OwnPool& pool = of(account);
  pool.needed = Clock::now();
  keep_leaving(account, pool, bytes);
  while (pool.available() < bytes && draw(account, pool, -1, false)) continue;
}

std::uint64_t Pools::can_make(const std::shared_ptr<Account>& account) const {
  if (!elastic()) return 0;
  const Space there = space(account);
  const std::uint64_t may = account->most(Resource::kPoolBytes);
  const std::uint64_t has = account->used(Resource::kPoolBytes) + there.stock + there.coming;
  const std::uint64_t left =
      std::min(bounds_.most - std::min(bounds_.most, all()), may - std::min(may, has));
  return left / chunk_ * chunk_;
}

// ---- what nobody needs --------------------------------------------------------------------------

std::optional<std::uint32_t> Pools::withdraw(const std::shared_ptr<Account>& account, Time before,
                                             std::uint64_t number) {
  OwnPool* const pool = find(account);
  if (pool == nullptr || pool->needed > before) return std::nullopt;
  const std::uint64_t over = beyond_reserve();
  std::vector<std::uint64_t> retained(pool->segments.size());
  pool->retained.each([&](const RetainedCopy& copy) {
    for (const Extent& extent : copy.extents) retained[extent.segment] += extent.length;
  });
  std::optional<std::uint32_t> best;  // what is retained goes last
  for (std::uint32_t i = 0; i < pool->segments.size(); ++i) {
    const OwnPool::Drawn& each = pool->segments[i];
    if (each.of.segment.size == 0 || each.leaving != 0 || each.of.segment.size > over) continue;
    if (pool->extents.available(i) + retained[i] < pool->extents.size(i)) continue;
    if (!best || retained[i] <= retained[*best]) best = i;
  }
  if (!best) return std::nullopt;
  const auto in_it = [&](std::uint32_t segment) { return segment == *best; };
  while (const std::optional<RetainedCopy> copy = pool->retained.take_oldest(in_it))
    pool->give_back(copy->extents);
  pool->segments[*best].leaving = number;
  pool->extents.withdraw(*best);
  pool->reach.withdraw(*best);
  return best;
}

OwnPool::Drawn* Pools::find_leaving(const std::shared_ptr<Account>& account, std::uint32_t index,
                                    std::uint64_t number) {
  OwnPool* const pool = find(account);
  if (pool == nullptr || index >= pool->segments.size()) return nullptr;
  OwnPool::Drawn& drawn = pool->segments[index];
  return number != 0 && drawn.leaving == number ? &drawn : nullptr;
}

void Pools::stayed(const std::shared_ptr<Account>& account, std::uint32_t index,
                   std::uint64_t number) {
  OwnPool::Drawn* const drawn = find_leaving(account, index, number);
  if (drawn == nullptr) return;
  OwnPool& pool = of(account);
  drawn->leaving = 0;
  pool.needed = Clock::now();
  pool.extents.restore(index, drawn->of.segment.size);
  pool.reach.restore(index, drawn->of.segment.size, drawn->of.segment.numa_node);
}

void Pools::left(const std::shared_ptr<Account>& account, std::uint32_t index,
                 std::uint64_t number) {
  OwnPool::Drawn* const drawn = find_leaving(account, index, number);
  if (drawn == nullptr) return;
  of(account).reach.left(index, drawn->of.segment.size);
  // The row first: the next amemd would miss what it names.
  drawn->of.row.erase();
  release_(std::move(drawn->of.segment));
  *drawn = {};
  drawn->left = true;
}

void Pools::keep_leaving(const std::shared_ptr<Account>& account, OwnPool& pool,
                         std::uint64_t bytes) {
  for (std::uint32_t i = 0; i < pool.segments.size() && pool.available() < bytes; ++i)
    stayed(account, i, pool.segments[i].leaving);
}

std::uint64_t Pools::leaving(const OwnPool& pool) const {
  std::uint64_t bytes = 0;
  for (const OwnPool::Drawn& each : pool.segments)
    if (each.leaving != 0) bytes += each.of.segment.size / chunk_ * chunk_;
  return bytes;
}

std::uint64_t Pools::beyond_reserve() const {
  std::uint64_t stays = all();
  for (const auto& [account, pool] : pools_) stays -= leaving(pool);
  return stays - std::min(stays, bounds_.reserve);
}

// ---- more than the reserve ----------------------------------------------------------------------

/// One at a time: who asked for it may not wait any more when it comes.
bool Pools::make_more(const std::shared_ptr<Account>& account) {
  const std::uint64_t size = std::min(can_make(account), bounds_.segment);
  if (making_ > 0) return true;
  if (size == 0) return false;
  making_ = size;
  more_(size);
  return true;
}

void Pools::not_made(std::uint64_t bytes, Status why) {
  making_ -= std::min(making_, bytes);
  refused_ = std::move(why);
  refused_at_ = Clock::now();
}

Status Pools::no_more() const {
  return Clock::now() - refused_at_ < kRefusalHolds ? refused_ : Status();
}

std::optional<Time> Pools::release_idle(Time before) {
  std::optional<Time> next;
  for (auto it = stock_.begin(); it != stock_.end();) {
    const bool fits = it->of.segment.size <= beyond_reserve();
    if (fits && it->since <= before) {
      release_(std::move(it->of.segment));
      it = stock_.erase(it);
      continue;
    }
    if (fits) next = std::min(next.value_or(it->since), it->since);
    ++it;
  }
  return next;
}

/// As make_space() draws, and has made anew what is missing then.
Pools::Space Pools::space(const std::shared_ptr<Account>& account) const {
  Space space;
  if (const OwnPool* const pool = find(account); pool != nullptr)
    space.own = pool->available() + leaving(*pool);
  std::vector<std::pair<int, std::uint64_t>> own;  // those to be drawn: ranks and sizes
  std::vector<std::uint64_t> others;
  for (const Stocked& stocked : stock_) {
    const int its = rank(stocked, account->owner(), -1, false);
    if (its > 0)
      own.emplace_back(its, stocked.of.segment.size);
    else
      others.push_back(stocked.of.segment.size);
  }
  std::stable_sort(own.begin(), own.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const std::uint64_t most = account->most(Resource::kPoolBytes);
  std::uint64_t left = most - std::min(most, account->used(Resource::kPoolBytes));
  for (const auto& [its, size] : own) {
    if (size > left) return space;
    left -= size;
    space.stock += size / chunk_ * chunk_;
  }
  if (!expect_renewals_) return space;
  for (const std::uint64_t size : others) {
    if (size > left) return space;
    left -= size;
    space.coming += size / chunk_ * chunk_;
  }
  space.coming += std::min(renewing_, left) / chunk_ * chunk_;
  return space;
}

void Pools::each_owner(const EachOwner& owner) const {
  for (const auto& [account, pool] : pools_) owner(account, pool);
}

void Pools::each(const std::function<void(const RecordedSegment&)>& segment) const {
  for (const auto& [account, pool] : pools_)
    for (const OwnPool::Drawn& drawn : pool.segments) segment(drawn.of);
  for (const Stocked& stocked : stock_) segment(stocked.of);
}

std::uint64_t Pools::total() const {
  std::uint64_t bytes = 0;
  for (const auto& [account, pool] : pools_) bytes += pool.extents.total() + leaving(pool);
  for (const Stocked& stocked : stock_) bytes += stocked.of.segment.size / chunk_ * chunk_;
  return bytes;
}

std::uint64_t Pools::used(const std::function<bool(const Account&)>& owners) const {
  std::uint64_t bytes = 0;
  for (const auto& [account, pool] : pools_)
    if (owners(*account)) bytes += pool.used();
  return bytes;
}

std::uint64_t Pools::retained(const std::function<bool(const Account&)>& owners) const {
  std::uint64_t bytes = 0;
  for (const auto& [account, pool] : pools_)
    if (owners(*account)) bytes += pool.retained.bytes();
  return bytes;
}

std::uint64_t Pools::unowned() const {
  std::uint64_t bytes = coming() / chunk_ * chunk_;
  for (const Stocked& stocked : stock_) bytes += stocked.of.segment.size / chunk_ * chunk_;
  return bytes;
}

std::uint64_t Pools::largest_segment() const {
  std::uint64_t largest = 0;
  each([&](const RecordedSegment& of) { largest = std::max(largest, of.segment.size); });
  return largest;
}

std::string Pools::place() const {
  for (const auto& [account, pool] : pools_)
    if (!pool.segments.empty())
      return std::string(to_string(pool.segments.back().of.segment.place));
  return stock_.empty() ? "" : std::string(to_string(stock_.back().of.segment.place));
}

}  // namespace amem
