#include "tests/sim/memory/copy.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/sim/memory/multicast.h"
#include "tests/sim/node/node.h"

namespace sim {
namespace {

using Clock = std::chrono::steady_clock;

// One direction of one device's link. Copies pass one after the other, in this process; other
// processes have a link of their own.
class Link {
 public:
  /// The time at which `bytes`, entering now, are across.
  Clock::time_point Across(size_t bytes) {
    const std::chrono::duration<double, std::nano> time(static_cast<double>(bytes) /
                                                        Node().bandwidth);
    const std::lock_guard<std::mutex> lock(mutex_);
    free_ = std::max(free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(time);
    return free_;
  }

 private:
  std::mutex mutex_;
  Clock::time_point free_;
};

Link& LinkOf(int device, bool in) {
  static auto* const links = new std::array<std::array<Link, kMaxDevices>, 2>();
  return (*links)[in ? 1 : 0][static_cast<size_t>(device)];
}

// Null if nothing limits the copy: bandwidth unset, or both ends on the same side.
Link* FindLink(const Checked& to, const Checked& from) {
  const bool out = from.memory == Memory::kDevice;
  const bool in = to.memory == Memory::kDevice;
  if (Node().bandwidth <= 0 || out == in || to.multicast != nullptr) return nullptr;
  return &LinkOf(out ? from.device : to.device, in);
}

CUresult CheckSide(Side side, const Checked& checked) {
  if (checked.result != CUDA_SUCCESS) return checked.result;
  const bool wrong = (side == Side::kDevice && checked.memory == Memory::kPageable) ||
                     (side == Side::kHost && checked.memory == Memory::kDevice);
  return wrong ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

bool ReadEnd(CUmemorytype type, const void* host, CUdeviceptr device, uintptr_t* address,
             Side* side) {
  switch (type) {
    case CU_MEMORYTYPE_HOST:
      *address = reinterpret_cast<uintptr_t>(host);
      *side = Side::kHost;
      return true;
    case CU_MEMORYTYPE_DEVICE:
      *address = device;
      *side = Side::kDevice;
      return true;
    case CU_MEMORYTYPE_UNIFIED:
      *address = device;
      *side = Side::kAny;
      return true;
    default:
      return false;  // arrays hold nothing here
  }
}

template <typename T>
void FillWith(uintptr_t to, T value, size_t count) {
  std::fill_n(reinterpret_cast<T*>(to), count, value);
}

}  // namespace

CUresult ReadCopy(const CUDA_MEMCPY3D& copy, Transfer* transfer, Side* to, Side* from) {
  if (copy.Depth > 1 ||
      !ReadEnd(copy.dstMemoryType, copy.dstHost, copy.dstDevice, &transfer->to, to) ||
      !ReadEnd(copy.srcMemoryType, copy.srcHost, copy.srcDevice, &transfer->from, from)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  transfer->width = copy.WidthInBytes;
  transfer->rows = copy.Depth == 0 ? 0 : copy.Height;
  transfer->to_pitch = copy.dstPitch != 0 ? copy.dstPitch : copy.WidthInBytes;
  transfer->from_pitch = copy.srcPitch != 0 ? copy.srcPitch : copy.WidthInBytes;
  if (transfer->to_pitch < copy.dstXInBytes + transfer->width ||
      transfer->from_pitch < copy.srcXInBytes + transfer->width) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  transfer->to += copy.dstY * transfer->to_pitch + copy.dstXInBytes;
  transfer->from += copy.srcY * transfer->from_pitch + copy.srcXInBytes;
  return CUDA_SUCCESS;
}

CUresult ReadSet(const CUDA_MEMSET_NODE_PARAMS& set, Fill* fill) {
  if (set.height != 1) return CUDA_ERROR_NOT_SUPPORTED;
  *fill = {set.dst, set.value, set.elementSize, set.width};
  return fill->width == 1 || fill->width == 2 || fill->width == 4 ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_INVALID_VALUE;
}

CUDA_MEMCPY3D Describe(const Transfer& transfer) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = transfer.from;
  copy.dstDevice = transfer.to;
  copy.srcPitch = transfer.from_pitch;
  copy.dstPitch = transfer.to_pitch;
  copy.WidthInBytes = transfer.width;
  copy.Height = transfer.rows;
  copy.Depth = 1;
  return copy;
}

CUDA_MEMSET_NODE_PARAMS Describe(const Fill& fill) {
  CUDA_MEMSET_NODE_PARAMS set{};
  set.dst = fill.to;
  set.value = fill.value;
  set.elementSize = fill.width;
  set.width = fill.count;
  set.height = 1;
  return set;
}

CUresult CheckTransfer(const Transfer& transfer, Side to, Side from, int accessor, Checked* to_is,
                       Checked* from_is) {
  *to_is = CheckAccess(transfer.to, transfer.to_bytes(), true, accessor);
  *from_is = CheckAccess(transfer.from, transfer.from_bytes(), false, accessor);
  const CUresult result = CheckSide(to, *to_is);
  return result != CUDA_SUCCESS ? result : CheckSide(from, *from_is);
}

CUresult CheckFill(const Fill& fill, int accessor) {
  if (fill.to % fill.width != 0) return CUDA_ERROR_INVALID_VALUE;
  return CheckSide(Side::kDevice, CheckAccess(fill.to, fill.count * fill.width, true, accessor));
}

CUresult RunTransfer(const Transfer& transfer, int accessor) {
  Checked to;
  Checked from;
  if (CheckTransfer(transfer, Side::kAny, Side::kAny, accessor, &to, &from) != CUDA_SUCCESS) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  Link* const link = FindLink(to, from);
  const Clock::time_point across =
      link != nullptr ? link->Across(transfer.width * transfer.rows) : Clock::time_point();
  for (size_t row = 0; row < transfer.rows; ++row) {
    if (to.multicast != nullptr) {
      if (!to.multicast->Write(
              to.offset + row * transfer.to_pitch,
              reinterpret_cast<const void*>(transfer.from + row * transfer.from_pitch),
              transfer.width)) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
      continue;
    }
    memmove(reinterpret_cast<void*>(transfer.to + row * transfer.to_pitch),
            reinterpret_cast<const void*>(transfer.from + row * transfer.from_pitch),
            transfer.width);
  }
  if (link != nullptr) std::this_thread::sleep_until(across);
  return CUDA_SUCCESS;
}

void PassLink(int device, bool out, size_t bytes) {
  if (Node().bandwidth > 0) std::this_thread::sleep_until(LinkOf(device, !out).Across(bytes));
}

CUresult RunFill(const Fill& fill, int accessor) {
  if (CheckFill(fill, accessor) != CUDA_SUCCESS) return CUDA_ERROR_ILLEGAL_ADDRESS;
  const size_t bytes = fill.count * fill.width;
  if (const Checked to = CheckAccess(fill.to, bytes, true, accessor); to.multicast != nullptr) {
    std::vector<unsigned char> pattern(bytes);
    for (size_t i = 0; i < bytes; i += fill.width) memcpy(&pattern[i], &fill.value, fill.width);
    const bool written = to.multicast->Write(to.offset, pattern.data(), bytes);
    return written ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  switch (fill.width) {
    case 1:
      FillWith(fill.to, static_cast<uint8_t>(fill.value), fill.count);
      break;
    case 2:
      FillWith(fill.to, static_cast<uint16_t>(fill.value), fill.count);
      break;
    default:
      FillWith(fill.to, fill.value, fill.count);
  }
  return CUDA_SUCCESS;
}

}  // namespace sim
