#include "daemon/plans/plan.h"

#include <algorithm>

#include "daemon/base/units.h"

namespace amem {
namespace {

void add_copies(const Allocation& allocation, bool in_place, std::vector<CopyRange>& copies) {
  if (allocation.saved.empty()) {
    copies.push_back({allocation.id, 0, allocation.size, kZeroSegment, 0});
    return;
  }
  std::uint64_t offset = 0;
  std::size_t i = 0;
  for (const Stored& piece : allocation.pieces()) {
    const Extent& extent = allocation.saved.extents[i++];
    copies.push_back({allocation.id, offset, piece.length, extent.segment, extent.offset,
                      piece.form, rule(piece.form).shorter ? piece.bytes : 0, piece.checksum, false,
                      0, in_place});
    offset += piece.length;
  }
}

/// A resume brings it back: it is on its device again, and not yet in the ranks' hands.
bool comes_back(const Allocation& a, const Selection& what) {
  return a.paused && a.resident() && what.takes(a.tag, a.sharers);
}

}  // namespace

Status check_tags(const Allocations& table, GroupId group, const Task& task) {
  const Selection& what = task.selection;
  if (task.op == Operation::kResume && task.guests != GuestPolicy::kDefault)
    return {Code::kInvalidArgument,
            "a resume does not support guests. Only a pause or a swap does"};
  if (what.all() && task.discard.empty()) return {};
  std::set<std::string> there;
  for (const Allocation* a : table.of_group(group)) there.insert(a->tag);
  const auto not_found = [&](const std::string& of) -> Status {
    const std::string text = "the group has no memory of " + of + "; ";
    if (there.empty()) return {Code::kNotFound, text + "it has no memory at all"};
    return {Code::kNotFound, text + "it has memory of " + to_string(Selection{there})};
  };
  // These two may be excepted blindly: they are never typing errors.
  const auto given = [](const std::string& tag) { return tag == kNcclTag || tag == kHeapTag; };
  for (const std::string& tag : what.tags)
    if (!there.contains(tag) && !(what.except && given(tag))) return not_found("tag '" + tag + "'");
  if (std::none_of(there.begin(), there.end(),
                   [&](const std::string& tag) { return what.takes(tag); }))
    return not_found(what.all() ? "tag '" + *task.discard.begin() + "'" : "other tags");

  if (task.op == Operation::kResume && !task.discard.empty())
    return {Code::kInvalidArgument, "a resume cannot drop bytes. Only a pause or a swap can"};
  for (const std::string& tag : task.discard) {
    if (tag != kNcclTag && !there.contains(tag)) return not_found("tag '" + tag + "'");
    if (Status status = may_drop(table, group, tag, task.force); !status.ok()) return status;
    if (!what.takes(tag))
      return {Code::kInvalidArgument, "tag '" + tag +
                                          "' cannot be dropped, because the pause is of " +
                                          to_string(what) + ". Pause this tag too, or keep it"};
  }
  for (const Allocation* a : table.of_group(group))
    if (a->paused && !a->saved.empty() && task.discard.contains(a->tag))
      return {Code::kFailedPrecondition,
              "tag '" + a->tag +
                  "' cannot be dropped now: it is paused, and the pause has saved its bytes. "
                  "Resume it first, or pause without dropping it"};
  return {};
}

Status may_drop(const Allocations& table, GroupId group, const std::string& tag, bool force) {
  if (tag == kNcclTag)
    return {Code::kInvalidArgument,
            "a pause always keeps the bytes of tag 'nccl': nobody has proven that NCCL works "
            "without them, and NCCL itself saves them when it suspends"};
  if (tag != kHeapTag || force) return {};
  const std::uint64_t bytes =
      table.usage(group, [&](const Allocation& a) { return a.tag == tag; }).allocated;
  return {Code::kInvalidArgument,
          "to discard tag 'heap' would lose " + format_size(bytes) +
              ": all memory that no region names, such as weights and optimizer state. A resume "
              "provides zeros for it. If the job can lose all of it, force it: --force in amemctl, "
              "force in programs"};
}

std::vector<Allocation*> to_save(Allocations& table, GroupId group, const Selection& what,
                                 const Allocations::Filter& needs_save) {
  return table.of_group(group, [&](const Allocation& a) {
    return what.takes(a.tag, a.sharers) && a.can_leave() && needs_save(a);
  });
}

Plan plan_save(const Allocations& table, GroupId group, const FormOf& form,
               const Allocations::Filter& chosen) {
  Plan plan;
  for (const Allocation* a : table.of_group(group)) {
    if (!a->resident() || a->saved.empty() || !chosen(*a)) continue;
    std::vector<CopyRange>& copies = plan[a->keeper()].copies;
    std::uint64_t offset = 0;
    std::size_t i = 0;
    for (const Stored& piece : a->pieces()) {
      const Extent& extent = a->saved.extents[i++];
      const bool shorter = extent.length < piece.length;
      copies.push_back({a->id, offset, piece.length, extent.segment, extent.offset,
                        shorter ? Form::kSparse : form(*a), shorter ? extent.length : 0, 0,
                        a->saved.hash && !shorter, a->saved.since});
      offset += piece.length;
    }
  }
  return plan;
}

BytesByDevice needs(const Allocations& table, const std::vector<GroupId>& groups,
                    const Selection& what) {
  BytesByDevice bytes;
  for (const GroupId group : groups)
    for (const Allocation* a : table.of_group(group))
      if (!a->resident() && what.takes(a->tag, a->sharers)) bytes[a->device] += a->size;
  return bytes;
}

std::vector<Creation::Item> to_bring_back(const Allocations& table, GroupId group,
                                          const Selection& what,
                                          const std::vector<std::string>& order) {
  std::vector<std::vector<const Allocation*>> by_tag(order.size() + 1);
  for (const Allocation* a : table.of_group(group)) {
    if (!a->paused || !what.takes(a->tag, a->sharers)) continue;
    const auto tag = std::find(order.begin(), order.end(), a->tag);
    by_tag[static_cast<std::size_t>(tag - order.begin())].push_back(a);
  }
  std::vector<Creation::Item> items;
  // The rest is made while the copies run.
  for (const auto& each : by_tag)
    for (const bool copied : {true, false})
      for (const Allocation* a : each)
        if (const std::uint64_t bytes = a->stayed ? 0 : a->saved_bytes(); (bytes > 0) == copied)
          items.push_back({a->id, a->keeper(), a->device, bytes, a->resident() ? 0 : a->size});
  return items;
}

Plan plan_load(const std::vector<const Allocation*>& slice,
               const std::set<AllocationId>& in_place) {
  Plan plan;
  for (const Allocation* a : slice) {
    if (a->pinned_by(a->keeper())) continue;
    RankPlan& keeper = plan[a->keeper()];
    keeper.maps.push_back(a);
    if (!a->stayed) add_copies(*a, in_place.contains(a->id), keeper.copies);
  }
  return plan;
}

Plan plan_peers(const Allocations& table, GroupId group, const Selection& what,
                const Loaders& loaders) {
  Plan plan;
  for (const Allocation* a : table.of_group(group)) {
    if (!comes_back(*a, what)) continue;
    const auto loader = loaders.find(a->id);
    for (RankId rank : a->sharers) {
      const bool has_it = (loader != loaders.end() && loader->second == rank) || a->pinned_by(rank);
      if (!has_it) plan[rank].maps.push_back(a);
    }
  }
  return plan;
}

bool loads_for_others(const Allocations& table, GroupId group, const Loaders& loaders,
                      RankId rank) {
  for (const Allocation* a : table.of_group(group)) {
    const auto loader = loaders.find(a->id);
    if (loader == loaders.end() || loader->second != rank) continue;
    if (std::any_of(a->sharers.begin(), a->sharers.end(), [rank](RankId h) { return h != rank; }))
      return true;
  }
  return false;
}

}  // namespace amem
