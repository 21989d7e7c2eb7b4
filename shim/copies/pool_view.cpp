#include "shim/copies/pool_view.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "shim/base/log.h"

namespace amem::shim {
namespace {

constexpr const char* kMemfdRemedy =
    "Set without = [\"host_numa\"] in amemd.toml, and restart amemd";

Status is_detached() {
  return {Code::kFailedPrecondition,
          "the saved bytes cannot be reached after a deep pause, or one that has failed, because "
          "the pool is not mapped here. Resume the group first"};
}

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Status PoolView::add(const amem_v1_PoolSegment& message, Fd fd) {
  if (const auto known = segments_.find(message.index); known != segments_.end()) {
    const std::uint64_t size = known->second.view->size();
    if (size == message.size)
      return known->second.view->detached() ? attach(known->second, message, fd) : Status();
    return {Code::kInternal, "the broker says that pool segment " + std::to_string(message.index) +
                                 " has " + std::to_string(message.size) + " bytes, but it had " +
                                 std::to_string(size) +
                                 " before. This rank continues with what it had"};
  }
  Result<Segment> mapped = map(message, fd);
  if (!mapped.ok()) {
    missing_[message.index] = mapped.status();
    return mapped.status();
  }
  missing_.erase(message.index);
  Segment& added = segments_[message.index] = std::move(mapped).value();
  for (int device : prepared_)
    if (Status s = grant(added, device); !s.ok()) return s;
  return {};
}

Result<PoolView::Segment> PoolView::map(const amem_v1_PoolSegment& message, const Fd& fd) {
  const std::string what = "pool segment " + std::to_string(message.index);
  if (!fd)
    return Status(Code::kResourceExhausted,
                  what + " came without its descriptor" + kNoSpaceForDescriptors);
  const std::optional<Place> place = place_of(message.place);
  if (!place)
    return Status(
        Code::kFailedPrecondition,
        what + " has the place " + std::to_string(message.place) +
            ", which this shim does not support. Start the job with the shim of amemd's version");
  Segment segment{make_view(*place, driver_, message.size), {}};
  if (Status s = map_view(*segment.view, message, fd, what); !s.ok()) return s;
  return segment;
}

Status PoolView::unmap(std::uint32_t index) {
  missing_.erase(index);
  const auto found = segments_.find(index);
  if (found == segments_.end()) return {};
  Segment& segment = found->second;
  if (segment.lent)
    return {Code::kFailedPrecondition,
            "the program may read pool segment " + std::to_string(index)};
  std::optional<LocalDevices::Use> use;
  if (!segment.reachable_from.empty()) {
    use.emplace(devices_, segment.reachable_from.front());
    if (use->result() != CUDA_SUCCESS)
      return driver_.error(use->result(), "the context of pool segment " + std::to_string(index));
  }
  if (Status s = segment.view->unmap(); !s.ok()) return s;
  segments_.erase(found);
  return {};
}

Status PoolView::map_view(SegmentView& view, const amem_v1_PoolSegment& message, const Fd& fd,
                          const std::string& what) {
  const bool of_device = place_of(message.place) == Place::kHostNuma;
  const DeviceUuid device = make_uuid(message.device);
  const Status mapped = view.map(fd, what);
  if (!of_device) return mapped;
  if (mapped.ok()) {
    devices_.maps_memory_of(device, kMemfdRemedy);
  } else if (devices_.ordinal(device) < 0) {
    return {mapped.code(), mapped.text() + ". The driver counts this memory to " +
                               to_string(device) + ", which this process does not see. " +
                               kMemfdRemedy};
  }
  return mapped;
}

Status PoolView::prepare(int device) {
  if (contains(prepared_, device)) return {};
  prepared_.push_back(device);
  for (auto& [index, segment] : segments_)
    if (Status s = grant(segment, device); !s.ok()) return s;
  return {};
}

void PoolView::forget(int device) {
  std::erase(prepared_, device);
  for (auto& [index, segment] : segments_) {
    std::erase(segment.reachable_from, device);
    if (segment.view->forget(device)) segment.reachable_from.clear();
    for (const int other : prepared_)
      if (Status s = grant(segment, other); !s.ok()) log_error(s.text());
  }
}

Status PoolView::grant(Segment& segment, int device) {
  if (contains(segment.reachable_from, device)) return {};
  LocalDevices::Use use(devices_, device);
  if (use.result() != CUDA_SUCCESS)
    return driver_.error(use.result(), "the context of device " + std::to_string(device));
  if (const CUresult r = segment.view->grant(device); r != CUDA_SUCCESS)
    return driver_.error(r, "access of device " + std::to_string(device) + " to the host pool");
  segment.reachable_from.push_back(device);
  return {};
}

Result<CUdeviceptr> PoolView::staged_at(Segment& segment, std::uint64_t offset, std::uint64_t bytes,
                                        int device, SegmentView::Use use) {
  if (segment.view->detached()) return is_detached();
  if (Status s = grant(segment, device); !s.ok()) return s;
  return segment.view->staged_at(offset, bytes, use);
}

Result<PoolView::Spot> PoolView::staged_at(const amem_v1_Copy& copy, int device,
                                           SegmentView::Use use) {
  const auto it = segments_.find(copy.segment);
  if (it == segments_.end()) {
    const auto why = missing_.find(copy.segment);
    return why != missing_.end()
               ? Status(why->second.code(),
                        why->second.text() + ". amemd sends it again for the next attempt")
               : Status(Code::kInternal,
                        "there is no pool segment " + std::to_string(copy.segment));
  }
  Segment& segment = it->second;
  const std::uint64_t size = segment.view->size();
  const std::uint64_t bytes = copy.stored != 0 ? copy.stored : copy.length;
  if (copy.segment_offset > size || bytes > size - copy.segment_offset)
    return Status(Code::kInternal,
                  "a copy reaches beyond pool segment " + std::to_string(copy.segment));
  const Result<CUdeviceptr> staged = staged_at(segment, copy.segment_offset, bytes, device, use);
  if (!staged.ok()) return staged.status();
  return Spot{segment.view->address() + copy.segment_offset, staged.value(), bytes};
}

Result<CUdeviceptr> PoolView::load_again(CUdeviceptr address, std::uint64_t bytes, int device) {
  const Result<Segment*> found = segment_at(address);
  if (!found.ok()) return found.status();
  return staged_at(*found.value(), address - found.value()->view->address(), bytes, device,
                   SegmentView::Use::kRead);
}

Status PoolView::attach(Segment& segment, const amem_v1_PoolSegment& message, const Fd& fd) {
  const std::string what = "pool segment " + std::to_string(message.index);
  if (!fd)
    return {Code::kResourceExhausted,
            what + " came without its descriptor" + kNoSpaceForDescriptors};
  if (Status s = map_view(*segment.view, message, fd, what); !s.ok()) return s;
  for (const int device : prepared_)
    if (Status s = grant(segment, device); !s.ok()) return s;
  return {};
}

Status PoolView::can_detach() const {
  const bool lent = std::any_of(segments_.begin(), segments_.end(), [](const auto& entry) {
    return entry.second.lent && entry.second.view->must_detach();
  });
  if (!lent) return {};
  return {Code::kFailedPrecondition,
          "this process has views of its saved bytes (get_cpu_backup with zero_copy), which a deep "
          "pause would unmap. Resume first, and copy the bytes instead, or set without = "
          "[\"host_numa\"] in amemd.toml"};
}

Status PoolView::detach() {
  for (auto& [index, segment] : segments_) {
    if (segment.view->detached() || !segment.view->must_detach()) continue;
    if (Status s = segment.view->detach(); !s.ok()) return s;
    segment.reachable_from.clear();
  }
  return {};
}

void PoolView::end_copies() {
  for (auto& [index, segment] : segments_) segment.view->end_copies();
}

Result<PoolView::Segment*> PoolView::segment_at(CUdeviceptr address) {
  const auto it = std::find_if(segments_.begin(), segments_.end(), [&](const auto& entry) {
    const SegmentView& view = *entry.second.view;
    return address >= view.address() && address - view.address() < view.size();
  });
  if (it == segments_.end())
    return Status(Code::kInternal, "the saved bytes are in no segment of the pool");
  return &it->second;
}

void PoolView::lend(CUdeviceptr address) {
  if (const Result<Segment*> found = segment_at(address); found.ok()) found.value()->lent = true;
}

void PoolView::views_end() {
  for (auto& [index, segment] : segments_) segment.lent = false;
}

Status PoolView::let_cpu_read(CUdeviceptr address) {
  const Result<Segment*> found = segment_at(address);
  if (!found.ok()) return found.status();
  if (found.value()->view->detached()) return is_detached();
  if (const CUresult r = found.value()->view->let_cpu_read(); r != CUDA_SUCCESS)
    return driver_.error(r, "reading saved bytes: access of this process to the host pool");
  return {};
}

}  // namespace amem::shim
