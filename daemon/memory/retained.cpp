#include "daemon/memory/retained.h"

#include <algorithm>
#include <utility>

namespace amem {

void Retained::add(AllocationId id, RetainedCopy copy) {
  bytes_ += bytes_of(copy.extents);
  by_age_.emplace(next_, id);
  copies_.emplace(id, Entry{std::move(copy), next_++});
}

const RetainedCopy* Retained::find(AllocationId id) const {
  const auto it = copies_.find(id);
  return it != copies_.end() ? &it->second.copy : nullptr;
}

std::uint64_t Retained::bytes(AllocationId id) const {
  const RetainedCopy* const copy = find(id);
  return copy != nullptr ? bytes_of(copy->extents) : 0;
}

std::optional<RetainedCopy> Retained::take(AllocationId id) {
  const auto it = copies_.find(id);
  if (it == copies_.end()) return std::nullopt;
  RetainedCopy copy = std::move(it->second.copy);
  by_age_.erase(it->second.number);
  copies_.erase(it);
  bytes_ -= bytes_of(copy.extents);
  return copy;
}

std::optional<RetainedCopy> Retained::take_oldest(
    const std::function<bool(std::uint32_t)>& segment) {
  for (const auto& [number, id] : by_age_) {
    const Extents& extents = copies_.at(id).copy.extents;
    if (std::any_of(extents.begin(), extents.end(),
                    [&](const Extent& extent) { return segment(extent.segment); }))
      return take(id);
  }
  return std::nullopt;
}

std::optional<RetainedCopy> Retained::take_oldest() {
  return by_age_.empty() ? std::nullopt : take(by_age_.begin()->second);
}

}  // namespace amem
