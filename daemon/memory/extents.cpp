#include "daemon/memory/extents.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

#include "common/numbers.h"
#include "daemon/base/units.h"

namespace amem {

std::uint32_t ExtentAllocator::add_segment(std::uint64_t size) {
  segments_.emplace_back();
  const auto index = static_cast<std::uint32_t>(segments_.size() - 1);
  restore(index, size);
  return index;
}

void ExtentAllocator::withdraw(std::uint32_t index) {
  Segment& segment = segments_[index];
  total_ -= segment.size;
  free_ -= segment.size;
  segment = {};
}

void ExtentAllocator::restore(std::uint32_t index, std::uint64_t size) {
  Segment& segment = segments_[index];
  segment.size = size / chunk_ * chunk_;
  if (segment.size > 0) segment.free.emplace(0, segment.size);
  total_ += segment.size;
  free_ += segment.size;
}

Result<std::vector<Extents>> ExtentAllocator::take(const std::vector<SpaceWanted>& requests,
                                                   std::vector<SegmentOrder> orders) {
  std::uint64_t need = 0;
  for (const SpaceWanted& request : requests) need += round_up(request.size, chunk_);
  if (need > free_)
    return Status(Code::kResourceExhausted, "the host pool is too small: it has " +
                                                format_size(free_) + " of " + format_size(total_) +
                                                " free, but " + format_size(need) + " are needed");

  // Enough chunks are free, and any chunk serves any request: nothing below can fail.
  if (orders.empty()) {
    orders.emplace_back(segments_.size());
    std::iota(orders.front().begin(), orders.front().end(), 0U);
  }
  std::vector<std::size_t> full(orders.size());  // of each order, so many at its front
  std::vector<Extents> result;
  result.reserve(requests.size());
  for (const SpaceWanted& request : requests) {
    Extents extents;
    std::uint64_t left = round_up(request.size, chunk_);
    const SegmentOrder& order = orders[request.order];
    for (std::size_t& at = full[request.order]; left > 0; ++at) {
      left -= take_from(order[at], left, extents);
      if (!segments_[order[at]].free.empty()) break;
    }
    result.push_back(std::move(extents));
  }
  free_ -= need;
  return result;
}

std::uint64_t ExtentAllocator::take_from(std::uint32_t index, std::uint64_t need, Extents& out) {
  FreeList& list = segments_[index].free;
  // One piece if some run is long enough: every piece costs a copy of its own.
  auto fit = std::find_if(list.begin(), list.end(),
                          [need](const auto& run) { return run.second >= need; });
  std::uint64_t taken = 0;
  auto run = fit != list.end() ? fit : list.begin();
  while (run != list.end() && taken < need) {
    const auto [offset, length] = *run;
    const std::uint64_t part = std::min(length, need - taken);
    out.push_back({index, offset, part});
    taken += part;
    run = list.erase(run);
    if (part < length) run = list.emplace_hint(run, offset + part, length - part);
  }
  return taken;
}

std::optional<Extent> ExtentAllocator::find_run(const SegmentOrder& order,
                                                std::uint64_t size) const {
  for (const std::uint32_t index : order) {
    const FreeList& list = segments_[index].free;
    if (list.empty()) continue;
    auto run = std::find_if(list.begin(), list.end(),
                            [size](const auto& each) { return each.second >= size; });
    if (run == list.end())
      run = std::max_element(list.begin(), list.end(),
                             [](const auto& a, const auto& b) { return a.second < b.second; });
    return Extent{index, run->first, run->second};
  }
  return std::nullopt;
}

void ExtentAllocator::take_run(const Extent& extent) {
  FreeList& list = segments_[extent.segment].free;
  const auto run = list.find(extent.offset);
  const std::uint64_t rest = run->second - extent.length;
  const auto next = list.erase(run);
  if (rest > 0) list.emplace_hint(next, extent.offset + extent.length, rest);
  free_ -= extent.length;
}

Status ExtentAllocator::take_again(const Extents& extents) {
  Extents taken;
  for (const Extent& extent : extents) {
    if (extent.segment < segments_.size() && extent.length > 0 && extent.offset % chunk_ == 0 &&
        extent.length % chunk_ == 0) {
      FreeList& list = segments_[extent.segment].free;
      auto run = list.upper_bound(extent.offset);
      if (run != list.begin() && (--run)->first + run->second >= extent.offset &&
          run->first + run->second - extent.offset >= extent.length) {
        const auto [offset, length] = *run;
        list.erase(run);
        if (offset < extent.offset) list.emplace(offset, extent.offset - offset);
        const std::uint64_t end = extent.offset + extent.length;
        if (end < offset + length) list.emplace(end, offset + length - end);
        free_ -= extent.length;
        taken.push_back(extent);
        continue;
      }
    }
    for (const Extent& each : taken) insert(each);
    return {Code::kDataLoss, "segment " + std::to_string(extent.segment) + ", offset " +
                                 std::to_string(extent.offset) + ", " +
                                 std::to_string(extent.length) + " bytes of the pool are not free"};
  }
  return {};
}

std::uint64_t ExtentAllocator::available(std::uint32_t segment) const {
  std::uint64_t bytes = 0;
  for (const auto& [offset, length] : segments_[segment].free) bytes += length;
  return bytes;
}

bool ExtentAllocator::in_use(const Extent& extent) const {
  if (extent.segment >= segments_.size() || extent.length == 0 || extent.offset % chunk_ != 0 ||
      extent.length % chunk_ != 0)
    return false;
  const Segment& segment = segments_[extent.segment];
  if (extent.offset > segment.size || extent.length > segment.size - extent.offset) return false;
  // The first free run that ends after our start must begin at or after our end.
  auto next = segment.free.upper_bound(extent.offset);
  if (next != segment.free.end() && next->first < extent.offset + extent.length) return false;
  if (next == segment.free.begin()) return true;
  const auto previous = std::prev(next);
  return previous->first + previous->second <= extent.offset;
}

Status ExtentAllocator::give_back(const Extents& extents) {
  auto wrong = [](const Extent& e) {
    return Status(Code::kInternal,
                  "amemd freed an extent of the pool that is not in use: segment " +
                      std::to_string(e.segment) + ", offset " + std::to_string(e.offset) + ", " +
                      std::to_string(e.length) + " bytes");
  };
  for (const Extent& extent : extents)
    if (!in_use(extent)) return wrong(extent);
  Extents sorted = extents;
  std::sort(sorted.begin(), sorted.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.segment, a.offset) < std::tie(b.segment, b.offset);
  });
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i].segment == sorted[i - 1].segment &&
        sorted[i].offset < sorted[i - 1].offset + sorted[i - 1].length)
      return wrong(sorted[i]);
  for (const Extent& extent : sorted) insert(extent);
  return {};
}

void ExtentAllocator::insert(const Extent& extent) {
  FreeList& list = segments_[extent.segment].free;
  std::uint64_t offset = extent.offset;
  std::uint64_t length = extent.length;
  auto next = list.upper_bound(offset);
  if (next != list.end() && next->first == offset + length) {
    length += next->second;
    next = list.erase(next);
  }
  if (next != list.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += length;
      free_ += extent.length;
      return;
    }
  }
  list.emplace_hint(next, offset, length);
  free_ += extent.length;
}

}  // namespace amem
