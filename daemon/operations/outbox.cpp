#include "daemon/operations/outbox.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace amem {
namespace {

constexpr Duration kTrimInterval = std::chrono::milliseconds(100);
/// What others keep is little, and costs them to get again: it is asked of them no more often for
/// one owner, however often that one's ranks ask for too much.
constexpr Duration kTrimOthersInterval = std::chrono::seconds(1);

/// Calls `send(begin, end, is_last)` for parts of at most so many items. `last`: nothing follows
/// these, so that the rank answers the last part; then there is one in any case.
template <class Item, class Send>
void in_packets(const std::vector<Item>& items, std::ptrdiff_t most, bool last, Send send) {
  const Item* at = items.data();
  const Item* const end = at + items.size();
  while (at != end || last) {
    const Item* stop = at + std::min(end - at, most);
    send(at, stop, last && stop == end);
    if (stop == end) return;
    at = stop;
  }
}

}  // namespace

void Outbox::trim(Account& owner, bool only_its) {
  const Time now = Clock::now();
  Account::Trims& last = owner.trims();
  // A rank may ask for too much again and again.
  const bool all = !only_its && now - last.all >= kTrimOthersInterval;
  if (!all && now - last.own < kTrimInterval) return;
  last.own = now;
  if (all) last.all = now;
  Message message = amem_v1_SessionMessage_init_zero;
  message.which_body = amem_v1_SessionMessage_trim_tag;
  for (const auto& [id, rank] : node_.ranks)
    if (all || rank.peer.account.get() == &owner) sessions_.send(rank.session, message);
}

void Outbox::send(RankId id, const Message& message, std::vector<SharedFd> fds) {
  if (const Rank* rank = node_.find_rank(id))
    sessions_.send(rank->session, message, std::move(fds));
}

void Outbox::send_all(const std::vector<RankId>& ranks, const Message& message) {
  for (RankId rank : ranks) send(rank, message);
}

void Outbox::give_segments(RankId id, const std::vector<std::uint32_t>& segments) {
  Rank* rank = node_.find_rank(id);
  if (rank == nullptr) return;
  for (const std::uint32_t index : segments) {
    const PoolSegment& segment = node_.pool_of(*rank).segments[index].of.segment;
    // Null: it was lost over a restart, with what it had: nothing can be saved to it.
    if (!segment.fd) continue;
    rank->has_pool = true;
    const DeviceUuid device = segment.place == Place::kHostNuma ? host_memory_ : DeviceUuid{};
    send(id, pool_segment_message(index, segment.size, segment.place, device), {segment.fd});
  }
}

void Outbox::extend_reach(RankId id) {
  if (const Rank* rank = node_.find_rank(id))
    give_segments(id, node_.pools.extend(rank->peer.account, id));
}

void Outbox::send_measure(RankId rank, Epoch epoch, const std::vector<MeasureRange>& ranges) {
  in_packets(ranges, kMaxRangesPerMessage, true, [&](auto at, auto stop, bool is_last) {
    send(rank, measure_message(epoch, at, stop, is_last));
  });
}

void Outbox::send_copies(RankId rank, CopyKind kind, Epoch epoch,
                         const std::vector<CopyRange>& copies, bool last) {
  const Rank* to = node_.find_rank(rank);
  if (to == nullptr) return;
  Reach& reach = node_.pool_of(*to).reach;
  for (const CopyRange& copy : copies)
    if (reach.add(rank, copy.segment)) give_segments(rank, {copy.segment});
  in_packets(copies, kMaxCopiesPerMessage, last, [&](auto at, auto stop, bool is_last) {
    send(rank, copies_message(kind, epoch, at, stop, is_last));
  });
}

void Outbox::send_maps(RankId rank, Epoch epoch, const std::vector<const Allocation*>& maps,
                       bool last) {
  in_packets(maps, kMaxMapsPerMessage, last, [&](auto at, auto stop, bool is_last) {
    std::vector<SharedFd> fds;
    for (auto a = at; a != stop; ++a) fds.push_back((*a)->fd);
    send(rank, map_message(epoch, at, stop, is_last), std::move(fds));
  });
}

void Outbox::send_make(RankId rank, Epoch epoch, std::uint64_t number,
                       const std::vector<AllocationId>& ids) {
  static_assert(Creation::kSliceCount <= kMaxMapsPerMessage);
  send(rank, make_message(epoch, number, ids));
}

void Outbox::send_release(RankId rank, Epoch epoch, const std::vector<AllocationId>& ids,
                          bool more_waves) {
  in_packets(ids, kMaxReleasesPerMessage, true, [&](auto at, auto stop, bool is_last) {
    send(rank, release_message(epoch, at, stop, !is_last, more_waves));
  });
}

}  // namespace amem
