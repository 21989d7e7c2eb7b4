#include "daemon/operations/saved_bytes.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "daemon/base/units.h"
#include "daemon/plans/plan.h"

namespace amem {
namespace {

/// Without a pidfd: long enough for a process to be torn down.
constexpr Duration kTeardown = std::chrono::seconds(60);

}  // namespace

Status SavedBytes::take(const GroupEntry& group, const Task& pause, const Devices& devices) {
  const std::vector<Allocation*> keep =
      to_save(node_.allocations, group.id, pause.selection,
              [&](const Allocation& a) { return !group.discards(a, pause.discard); });
  std::vector<ExtentAllocator::Request> requests;
  requests.reserve(keep.size());
  std::vector<SegmentOrder> orders;
  std::map<std::pair<RankId, DeviceUuid>, std::size_t> order_of;
  for (const Allocation* a : keep) {
    const auto [it, first] = order_of.try_emplace({a->keeper(), a->device}, orders.size());
    if (first) orders.push_back(node_.reach.order(a->keeper(), devices.numa_node(a->device)));
    requests.push_back({a->size, it->second});
  }
  Result<std::vector<Extents>> taken = node_.extents.take(requests, std::move(orders));
  if (!taken.ok()) {
    std::string text = taken.status().text();
    if (node_.extents.total() < node_.pool_configured)
      text += node_.pool_error.empty() ? " (the pool is still being created, " +
                                             format_size(node_.pool_configured) + " in all)"
                                       : " (" + node_.pool_error + ")";
    return {taken.status().code(), text + "; raise pool.size, or discard a tag"};
  }
  for (std::size_t i = 0; i < keep.size(); ++i) {
    keep[i]->saved = std::move(taken.value()[i]);
    keep[i]->stored.clear();
    keep[i]->saver = keep[i]->keeper();
  }
  return {};
}

Status SavedBytes::stored(const GroupEntry& group, const Rank& rank, const amem_v1_Saved& saved) {
  // Of a pause that has been called off: all of it goes back anyway.
  if (rule(group.machine.phase()).answer != Work::kSave ||
      group.machine.epoch() != Epoch(saved.epoch, saved.wave))
    return {};
  for (pb_size_t i = 0; i < saved.pieces_count; ++i) {
    const amem_v1_Saved_Piece& piece = saved.pieces[i];
    Allocation* a = node_.allocations.find(piece.id);
    if (a == nullptr || a->saved.empty()) continue;  // freed, or pinned, meanwhile
    Extents left;
    if (a->saver != rank.id || !a->store({piece.offset, piece.stored, piece.sparse, piece.checksum},
                                         node_.extents.chunk(), left))
      return {Code::kInvalidArgument, "it says that it has stored " + std::to_string(piece.stored) +
                                          " bytes of allocation " + std::to_string(piece.id) +
                                          " from byte " + std::to_string(piece.offset) +
                                          " on, which it was not told to"};
    free(left);
  }
  return {};
}

void SavedBytes::give_back(Allocation& allocation) {
  Extents extents = std::exchange(allocation.saved, {});
  allocation.stored.clear();
  Rank* rank = node_.find_rank(allocation.saver);
  if (extents.empty()) return;
  if (rank != nullptr && !rank->saving.empty())
    rank->limbo.insert(rank->limbo.end(), extents.begin(), extents.end());
  else
    free(extents);
}

void SavedBytes::answered(Rank& rank, Epoch epoch, Work work) {
  if (work == Work::kSave)
    rank.saving.erase(epoch);
  else
    rank.saving.erase(rank.saving.begin(), rank.saving.upper_bound(epoch));
  if (rank.saving.empty()) free(std::exchange(rank.limbo, {}));
}

void SavedBytes::rank_gone(const GroupEntry& group, Rank& rank) {
  if (rank.saving.empty()) return;
  for (Allocation* a : node_.allocations.of_group(group.id)) {
    // What has been dropped was saved in an earlier wave: others may hold it.
    if (a->resident() && a->saver == rank.id) give_back(*a);
  }
  rank.saving.clear();  // nobody writes to what else it has saved
  if (rank.limbo.empty()) return;
  const std::uint64_t key = next_key_++;
  Ended& ended = ended_[key];
  ended.process = rank.peer.process;
  ended.extents = std::exchange(rank.limbo, {});
  if (ended.process)
    ended.watch =
        loop_.watch(ended.process->get(), EPOLLIN, [this, key](std::uint32_t) { free_ended(key); });
  if (ended.watch == 0) loop_.at(Clock::now() + kTeardown, [this, key] { free_ended(key); });
}

void SavedBytes::free_ended(std::uint64_t key) {
  const auto it = ended_.find(key);
  if (it == ended_.end()) return;
  if (it->second.watch != 0) loop_.unwatch(it->second.watch);
  free(it->second.extents);
  ended_.erase(it);
}

void SavedBytes::free(const Extents& extents) {
  if (Status status = node_.extents.give_back(extents); !status.ok())
    spdlog::error("pool: {}", status.text());
}

}  // namespace amem
