#include "shim/calls/memory_margin.h"

#include <algorithm>
#include <atomic>

#include "shim/process/symbols.h"
#include "shim/runtime/runtime.h"

namespace amem::shim {
namespace {

std::atomic<std::uint64_t>& margin() {
  static std::atomic<std::uint64_t> bytes{Runtime::get().options().memory_margin};
  return bytes;
}

}  // namespace

CUresult memory_info(MemGetInfo* driver, std::size_t* free, std::size_t* total) {
  Runtime& runtime = Runtime::get();
  if (Heap* heap = runtime.heap(); heap != nullptr) heap->flush_frees();
  const CUresult r = driver(free, total);
  LocalDevices* devices = runtime.devices();
  if (r != CUDA_SUCCESS || free == nullptr || total == nullptr) return r;
  if (devices == nullptr || runtime.forked()) return r;
  if (const int device = devices->current(); device >= 0)
    // After the driver: what is closed in between is missing, but nothing counts twice.
    *free = std::min(*total, *free + runtime.memory().brokered.spare_bytes(devices->uuid(device)));
  return r;
}

void set_memory_margin(std::uint64_t bytes) { margin() = bytes; }

bool within_memory_margin(std::uint64_t size) {
  const std::uint64_t bytes = margin();
  if (bytes == 0) return true;
  // The program need not have asked for it.
  const auto driver = reinterpret_cast<MemGetInfo*>(driver_symbol("cuMemGetInfo_v2"));
  std::size_t free = 0, total = 0;
  // Whoever has no device is told so by the allocation.
  if (driver == nullptr || memory_info(driver, &free, &total) != CUDA_SUCCESS) return true;
  return size <= free && bytes <= free - size;
}

}  // namespace amem::shim
