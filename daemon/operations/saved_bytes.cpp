#include "daemon/operations/saved_bytes.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "common/numbers.h"
#include "daemon/base/units.h"
#include "daemon/memory/shortage.h"
#include "daemon/plans/plan.h"

namespace amem {
namespace {

/// Without a pidfd: long enough for a process to be torn down.
constexpr Duration kTeardown = std::chrono::seconds(60);

}  // namespace

std::vector<Allocation*> SavedBytes::find_to_save(const GroupEntry& group, const Task& pause) {
  return to_save(node_.allocations, group.id, pause.selection,
                 [&](const Allocation& a) { return !group.discards(a, pause.discard); });
}

std::vector<SegmentOrder> SavedBytes::orders(const OwnPool& pool,
                                             const std::vector<Allocation*>& to_save,
                                             const Devices& devices,
                                             std::vector<std::size_t>& order_of) const {
  std::vector<SegmentOrder> orders;
  std::map<std::pair<RankId, DeviceUuid>, std::size_t> known;
  for (const Allocation* a : to_save) {
    const auto [it, first] = known.try_emplace({a->keeper(), a->device}, orders.size());
    if (first) orders.push_back(pool.reach.order(a->keeper(), devices.numa_node(a->device)));
    order_of.push_back(it->second);
  }
  return orders;
}

Status SavedBytes::take(const GroupEntry& group, const Task& pause, const Devices& devices,
                        const Measurement* measured) {
  OwnPool& pool = node_.pools.of(group.account);
  for (const Allocation* a : node_.allocations.of_group(group.id))
    if (pause.selection.takes(a->tag, a->sharers) && group.discards(*a, pause.discard))
      forget_retained(*a);
  std::vector<Allocation*> fresh;
  std::vector<std::pair<Allocation*, RetainedCopy>> again;
  // Of thousands of allocations each has the same few ranks, and a rank may have many calls.
  std::set<RankId> gated;
  for (const RankId id : group.machine.members().ids())
    if (const Rank* rank = node_.find_rank(id); rank != nullptr && !rank->passes_gates())
      gated.insert(id);
  for (Allocation* a : find_to_save(group, pause)) {
    a->saved.hash = hashes(group, *a, gated);
    std::optional<RetainedCopy> copy = pool.retained.take(a->id);
    if (copy && a->saved.hash && copy->saver == a->keeper() && measured == nullptr) {
      again.emplace_back(a, std::move(*copy));
      continue;
    }
    if (copy) pool.give_back(copy->extents);
    fresh.push_back(a);
  }
  Result<std::vector<TakenSpace>> taken =
      measured != nullptr ? packed(group, fresh, devices, *measured) : whole(group, fresh, devices);
  if (!taken.ok()) {
    for (auto& [a, copy] : again) pool.retained.add(a->id, std::move(copy));
    return taken.status();
  }
  const auto take = [&](Allocation& a, TakenSpace space, std::uint64_t since) {
    a.saved.extents = std::move(space.extents);
    a.saved.pieces = std::move(space.pieces);
    a.saved.saver = a.keeper();
    a.saved.attempt = group.machine.epoch().attempt;
    a.saved.since = since;
    a.saved.sent = false;
  };
  for (std::size_t i = 0; i < fresh.size(); ++i) take(*fresh[i], std::move(taken.value()[i]), 0);
  for (auto& [a, copy] : again) take(*a, {std::move(copy.extents), {}}, copy.attempt);
  return {};
}

/// A driver call that passes no gate may write to memory while it is compared and copied. So the
/// memory of a rank that makes such calls is copied always.
bool SavedBytes::hashes(const GroupEntry& group, const Allocation& a,
                        const std::set<RankId>& gated) const {
  if (node_.retain == Retain::kOff) return false;
  if (const Form form = node_.form(group, a); form != Form::kAuto && form != Form::kDense)
    return false;
  for (const RankId id : a.sharers)
    if (!gated.contains(id)) return false;
  const auto tag = group.changes.find(a.tag);
  return node_.retain == Retain::kAlways || tag == group.changes.end() || tag->second.hashes();
}

Result<std::vector<TakenSpace>> SavedBytes::whole(const GroupEntry& group,
                                                  const std::vector<Allocation*>& to_save,
                                                  const Devices& devices) {
  std::uint64_t need = 0;
  for (const Allocation* a : to_save) need += round_up(a->size, node_.pools.chunk());
  const Status space = node_.pools.make_space(group.account, need);
  OwnPool& pool = node_.pools.of(group.account);
  if (!space.ok()) return grow(group, need - pool.extents.available(), space);
  clear_reached(pool, to_save);
  std::vector<std::size_t> order_of;
  std::vector<SegmentOrder> all = orders(pool, to_save, devices, order_of);
  std::vector<ExtentAllocator::SpaceWanted> requests;
  requests.reserve(to_save.size());
  for (std::size_t i = 0; i < to_save.size(); ++i)
    requests.push_back({to_save[i]->size, order_of[i]});
  Result<std::vector<Extents>> taken = pool.extents.take(requests, std::move(all));
  if (!taken.ok()) return taken.status();
  std::vector<TakenSpace> spaces;
  spaces.reserve(to_save.size());
  for (Extents& extents : taken.value()) spaces.push_back({std::move(extents), {}});
  return spaces;
}

Status SavedBytes::grow(const GroupEntry& group, std::uint64_t missing, const Status& why) {
  Pools& pools = node_.pools;
  if (missing > pools.coming(*group.account) + pools.can_make(group.account)) return why;
  if (!pools.no_more().ok() || !pools.make_more(group.account)) return why;
  return {Code::kUnavailable, "amemd pins " + format_size(missing) + " of host memory"};
}

void SavedBytes::clear_reached(OwnPool& pool, const std::vector<Allocation*>& to_save) {
  if (pool.retained.bytes() == 0) return;
  std::map<RankId, std::uint64_t> need;
  for (const Allocation* a : to_save) need[a->keeper()] += round_up(a->size, pool.extents.chunk());
  for (const auto& [rank, bytes] : need) {
    const auto reached = [&pool, keeper = rank](std::uint32_t segment) {
      return pool.reach.reaches(keeper, segment);
    };
    const auto available = [&] {
      std::uint64_t sum = 0;
      for (std::uint32_t i = 0; i < pool.segments.size(); ++i)
        if (reached(i)) sum += pool.extents.available(i);
      return sum;
    };
    while (available() < bytes) {
      const std::optional<RetainedCopy> copy = pool.retained.take_oldest(reached);
      if (!copy) break;
      pool.give_back(copy->extents);
    }
  }
}

Result<std::vector<TakenSpace>> SavedBytes::packed(const GroupEntry& group,
                                                   const std::vector<Allocation*>& to_save,
                                                   const Devices& devices,
                                                   const Measurement& measured) {
  // As much as there is, where it is not enough either: the figures are of what there is then.
  std::uint64_t need = 0;
  for (const Allocation* a : to_save)
    need += packed_size({a->size, 0, node_.form(group, *a), measured.blocks(a->id)},
                        node_.pools.chunk());
  (void)node_.pools.make_space(group.account, need);
  OwnPool& pool = node_.pools.of(group.account);
  std::vector<std::size_t> order_of;
  const std::vector<SegmentOrder> all = orders(pool, to_save, devices, order_of);
  std::vector<PackRequest> requests;
  requests.reserve(to_save.size());
  for (std::size_t i = 0; i < to_save.size(); ++i)
    requests.push_back({to_save[i]->size, order_of[i], node_.form(group, *to_save[i]),
                        measured.blocks(to_save[i]->id)});
  Packing packing = pack(pool.extents, requests, all);
  if (packing.missing == 0) return std::move(packing.spaces);
  if (packing.missing <= node_.pools.coming(*group.account))
    return Status(Code::kUnavailable, "amemd prepares " + format_size(packing.missing) +
                                          " of the pool that other users had");
  if (const Status grows = grow(group, packing.missing, {}); !grows.ok()) return grows;

  Shortage shortage;
  shortage.missing = packing.missing;
  shortage.free = pool.available();
  shortage.total = pool.extents.total();
  shortage.not_seen = measured.not_seen();
  for (std::size_t i = 0; i < to_save.size(); ++i) {
    Shortage::Tag& tag = shortage.tags[to_save[i]->tag];
    tag.size += to_save[i]->size;
    tag.stored += packed_size(requests[i], node_.pools.chunk());
    // It is kept all the same where somebody has set the policy of the tag.
    tag.cache = tag.cache && to_save[i]->region == RegionPolicy::kDiscard &&
                to_save[i]->tag != kHeapTag && to_save[i]->tag != kNcclTag;
  }
  shortage.others = others_bytes(group);
  find_remedies(*group.account, shortage);
  return Status(Code::kResourceExhausted, describe(shortage));
}

/// Whoever has a segment has all of it. So beside other owners whole segments are missing: the
/// owner's, and those that the others would take first because they have more to save than space.
void SavedBytes::find_remedies(const Account& account, Shortage& shortage) const {
  const Pools& pools = node_.pools;
  const std::uint64_t segment = std::max(pools.largest_segment(), pools.chunk());
  std::uint64_t others_lack = 0;
  pools.each_owner([&](const std::shared_ptr<Account>& owner, const OwnPool& pool) {
    if (owner.get() == &account) return;
    shortage.of_others += pool.extents.total();
    // Its quota may grow with the pool.
    const std::uint64_t wanted = pool.reach.to_save();
    if (wanted > pool.extents.total())
      others_lack += round_up(wanted - pool.extents.total(), segment);
  });
  if (shortage.total + shortage.missing > account.most(Resource::kPoolBytes))
    shortage.quota = shortage.total + round_up(shortage.missing, segment);
  const std::uint64_t unowned = pools.unowned();
  if (shortage.quota > 0 && shortage.missing <= unowned) return;
  const std::uint64_t more = shortage.missing - std::min(shortage.missing, unowned);
  const std::uint64_t there = pools.total() + pools.coming();
  const std::uint64_t to_create = node_.pool_configured - std::min(node_.pool_configured, there);
  const std::string trouble = node_.pool_error.empty() ? pools.no_more().text() : node_.pool_error;
  if (to_create > 0) shortage.trouble = trouble;
  shortage.coming = to_create >= more && trouble.empty() && !pools.elastic();
  if (to_create < more)
    shortage.pool_size =
        there + (shortage.of_others > 0 ? round_up(more, segment) + others_lack : more);
}

std::string SavedBytes::pool_users(const GroupEntry& group) const {
  std::vector<std::pair<std::uint64_t, std::string>> all;
  node_.pools.each_owner([&](const std::shared_ptr<Account>& owner, const OwnPool& pool) {
    if (owner != group.account && pool.extents.total() > 0)
      all.emplace_back(pool.extents.total(), to_string(owner->owner()));
  });
  std::sort(all.begin(), all.end(), std::greater<>());
  constexpr std::size_t kMost = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(all.size(), kMost); ++i)
    text += (i == 0 ? "" : ", ") + all[i].second + " keeps " + format_size(all[i].first);
  if (all.size() > kMost)
    text += ", " + std::to_string(all.size() - kMost) + " more owners keep the rest";
  return text;
}

/// Of the owner's other groups: of nobody else's is anything told.
std::map<std::string, std::uint64_t> SavedBytes::others_bytes(const GroupEntry& group) const {
  std::map<std::string, std::uint64_t> bytes;
  for (const auto& [id, entry] : node_.groups) {
    if (id == group.id || entry.account != group.account) continue;
    for (const Allocation* a : node_.allocations.of_group(id))
      for (const Extent& extent : a->saved.extents) bytes[entry.machine.name()] += extent.length;
  }
  return bytes;
}

Status SavedBytes::stored(const GroupEntry& group, const Rank& rank, const amem_v1_Saved& saved) {
  // Of a pause that has been called off: all of it goes back anyway.
  if (rule(group.machine.phase()).answer != RankPhase::kSave ||
      group.machine.epoch() != Epoch(saved.epoch, saved.wave))
    return {};
  bool on_record = true;  // it says nothing new of this allocation
  for (pb_size_t i = 0; i < saved.pieces_count; ++i) {
    const amem_v1_Saved_Piece& piece = saved.pieces[i];
    Allocation* a = node_.allocations.find(piece.id);
    if (a == nullptr || a->saved.empty()) continue;  // freed, or pinned, meanwhile
    const std::optional<Form> form = stored_form_of(piece.form);
    Extents left;
    if (!form || a->saved.saver != rank.id ||
        !a->store({piece.offset, piece.stored, *form, piece.checksum, piece.hashed && a->saved.hash,
                   piece.unchanged},
                  node_.pools.chunk(), left))
      return {Code::kInvalidArgument,
              "it reports that it has stored " + std::to_string(piece.stored) +
                  " bytes of allocation " + std::to_string(piece.id) + " from byte " +
                  std::to_string(piece.offset) + " on in form " + std::to_string(piece.form) +
                  ", which it was not told to do"};
    free(group.account, left);
    on_record = on_record && *form == Form::kDense && piece.checksum == 0;
    if (i + 1 < saved.pieces_count && saved.pieces[i + 1].id == piece.id) continue;
    if (!std::exchange(on_record, true))
      if (Status status = node_.records.write_saved(*a); !status.ok()) return status;
  }
  return {};
}

void SavedBytes::forget_retained(const Allocation& allocation) {
  OwnPool* const pool = node_.pools.find(allocation.charge.account());
  if (pool == nullptr) return;
  if (const std::optional<RetainedCopy> copy = pool->retained.take(allocation.id))
    pool->give_back(copy->extents);
}

void SavedBytes::retain(Allocation& allocation) {
  Saved& saved = allocation.saved;
  if (saved.empty()) return;
  const Rank* saver = node_.find_rank(saved.saver);
  const std::uint64_t attempt = allocation.hashed_by();
  const bool surely = saver != nullptr && saver->saving.empty() && attempt != 0;
  if (!surely || allocation.keeper() != saved.saver || allocation.pinned() ||
      node_.retain == Retain::kOff)
    return give_back(allocation);
  node_.pools.of(allocation.charge.account())
      .retained.add(allocation.id, {std::exchange(saved.extents, {}), saved.saver, attempt});
  saved.pieces.clear();
  saved.row.erase();
}

void SavedBytes::give_back(Allocation& allocation) {
  forget_retained(allocation);
  Extents extents = std::exchange(allocation.saved.extents, {});
  allocation.saved.pieces.clear();
  Rank* rank = node_.find_rank(allocation.saved.saver);
  if (extents.empty()) return;
  if (rank != nullptr && !rank->saving.empty()) {
    rank->limbo.insert(rank->limbo.end(), extents.begin(), extents.end());
    (void)node_.records.write_limbo(*rank);
  }
  // That its sharers are gone is on record first: with them and without its bytes it would be
  // missed.
  if (allocation.sharers.empty()) {
    if (allocation.opened())
      (void)node_.records.write(allocation);
    else
      allocation.row.erase();
  }
  allocation.saved.row.erase();
  if (rank == nullptr || rank->saving.empty()) free(allocation.charge.account(), extents);
}

void SavedBytes::failed(const GroupEntry& group, const Rank& rank, Epoch epoch) {
  for (Allocation* a : node_.allocations.of_group(group.id))
    if (a->saved.saver == rank.id && a->saved.attempt == epoch.attempt && a->saved.sent)
      for (Stored& piece : a->saved.pieces) piece.hashed = false;
}

void SavedBytes::may_have_written(const GroupEntry& group, const Rank& rank) {
  const Retained& retained = node_.pools.of(group.account).retained;
  for (Allocation* a : node_.allocations.of_group(group.id)) {
    const RetainedCopy* const copy = retained.find(a->id);
    const bool its = copy != nullptr && copy->saver == rank.id;  // nobody else can compare
    if (!its && !a->shared_by(rank.id)) continue;
    forget_retained(*a);
    for (Stored& piece : a->saved.pieces) piece.hashed = false;
  }
}

void SavedBytes::answered(Rank& rank, Epoch epoch, RankPhase phase) {
  std::set<Epoch>& saving = rank.saving;
  // It has got to this packet, so nothing of what was sent before goes on: also where the answer to
  // that never came. The Save of a quiesce's or a measure's own epoch comes after it.
  const bool before_save = phase == RankPhase::kQuiet || phase == RankPhase::kMeasure;
  saving.erase(saving.begin(), before_save ? saving.lower_bound(epoch) : saving.upper_bound(epoch));
  if (saving.empty()) free_limbo(rank);
}

void SavedBytes::returned(Rank& rank) {
  rank.saving.clear();
  free_limbo(rank);
}

void SavedBytes::free_limbo(Rank& rank) {
  if (rank.limbo.empty()) return;
  rank.limbo_row.erase();
  free(rank.peer.account, std::exchange(rank.limbo, {}));
}

void SavedBytes::rank_gone(const GroupEntry& group, Rank& rank) {
  for (Allocation* a : node_.allocations.of_group(group.id)) {
    if (rank.saving.empty()) break;
    // What has left was saved before, in an earlier wave or pause, and others may hold it. It may
    // be on its device again, on its way back.
    if (!a->paused && a->saved.saver == rank.id) give_back(*a);
  }
  may_have_written(group, rank);
  rank.saving.clear();             // nobody writes to what else it has saved
  if (rank.limbo.empty()) return;  // what there is may be of before a restart
  await_end(rank.peer.process, rank.peer.account, std::exchange(rank.limbo, {}),
            std::move(rank.limbo_row), std::move(rank.holder_entry));
}

void SavedBytes::await_end(SharedFd process, std::shared_ptr<Account> account, Extents extents,
                           Row row, HolderEntry holder_entry) {
  const std::uint64_t key = next_key_++;
  Ended& ended = ended_[key];
  ended.process = std::move(process);
  ended.account = std::move(account);
  ended.extents = std::move(extents);
  ended.row = std::move(row);
  ended.holder_entry = std::move(holder_entry);
  if (ended.process)
    ended.watch =
        loop_.watch(ended.process->get(), EPOLLIN, [this, key](std::uint32_t) { free_ended(key); });
  if (ended.watch == 0) loop_.at(Clock::now() + kTeardown, [this, key] { free_ended(key); });
}

void SavedBytes::write_off(std::shared_ptr<Account> account, Extents extents, Row row) {
  Ended& ended = ended_[next_key_++];
  ended.account = std::move(account);
  ended.extents = std::move(extents);
  ended.row = std::move(row);
}

void SavedBytes::free_ended(std::uint64_t key) {
  const auto it = ended_.find(key);
  if (it == ended_.end()) return;
  if (it->second.watch != 0) loop_.unwatch(it->second.watch);
  free(it->second.account, it->second.extents);
  ended_.erase(it);
}

void SavedBytes::hold_again() {
  for (const auto& [key, ended] : ended_)
    if (ended.process) node_.records.record().hold_again(ended.holder_entry, ended.process);
}

void SavedBytes::free(const std::shared_ptr<Account>& account, const Extents& extents) {
  if (extents.empty()) return;
  node_.pools.of(account).give_back(extents);
  node_.pools.saved_less(account);
}

}  // namespace amem
