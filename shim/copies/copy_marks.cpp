#include "shim/copies/copy_marks.h"

#include <algorithm>
#include <cstddef>

namespace amem::shim {

void CopyMarks::prepare(int device) {
  Device& made = devices_with_[device];
  if (made.spacing > 0) return;
  made.spacing = spacing_;
  for (std::size_t i = 0; i < kEvents; ++i) {
    CUevent event = nullptr;
    if (driver_.cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) break;
    made.free.push_back(event);
  }
}

std::uint64_t CopyMarks::queued(int device, CUstream stream, std::uint64_t bytes) {
  Device& d = devices_with_[device];
  d.queued += bytes;
  const auto due = [&d] {
    return d.queued - (d.marks.empty() ? 0 : d.marks.back().bytes) >= d.spacing;
  };
  if (due() && d.free.empty()) thin(d);
  if (due() && !d.free.empty() && driver_.cuEventRecord_(d.free.back(), stream) == CUDA_SUCCESS) {
    d.marks.push_back({d.free.back(), d.queued});
    d.free.pop_back();
  }
  return d.queued;
}

/// Keeps the second, the fourth and so on: the last one, too.
void CopyMarks::thin(Device& device) {
  std::vector<Mark> remaining;
  for (std::size_t i = 0; i < device.marks.size(); ++i) {
    if (i % 2 == 1)
      remaining.push_back(device.marks[i]);
    else
      device.free.push_back(device.marks[i].event);
  }
  device.marks = std::move(remaining);
  device.spacing *= 2;
}

void CopyMarks::follow(const Follow& how) {
  if (!how.tell && !how.reached) return;
  // Devices copy beside each other: the marks of all in the order of their places.
  struct Next {
    double place;
    int device;
    Mark mark;
  };
  std::vector<Next> all;
  std::uint64_t of = 0;
  for (const auto& [ordinal, device] : devices_with_) {
    of += device.queued;
    for (const Mark& mark : device.marks)
      all.push_back(
          {static_cast<double>(mark.bytes) / static_cast<double>(device.queued), ordinal, mark});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Next& a, const Next& b) { return a.place < b.place; });
  std::map<int, std::uint64_t> done;
  if (how.reached)
    for (const auto& [ordinal, device] : devices_with_) how.reached(ordinal, 0);
  auto told = std::chrono::steady_clock::now();
  for (const Next& next : all) {
    LocalDevices::Use use(devices_, next.device);
    if (use.result() != CUDA_SUCCESS ||
        driver_.cuEventSynchronize_(next.mark.event) != CUDA_SUCCESS)
      return;
    done[next.device] = next.mark.bytes;
    if (how.reached) how.reached(next.device, next.mark.bytes);
    if (!how.tell) continue;
    const auto now = std::chrono::steady_clock::now();
    if (now - told < how.interval) continue;
    told = now;
    std::uint64_t bytes = 0;
    for (const auto& [device, copied] : done) bytes += copied;
    how.tell(bytes, of);
  }
}

void CopyMarks::clear() {
  for (auto& [ordinal, device] : devices_with_) {
    for (const Mark& mark : device.marks) device.free.push_back(mark.event);
    device.marks.clear();
    if (device.spacing > 0) device.spacing = spacing_;
    device.queued = 0;
  }
}

}  // namespace amem::shim
