#include "shim/calls/memory_margin.h"

#include <cuda.h>

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

void set_memory_margin(std::uint64_t bytes) { margin() = bytes; }

bool within_memory_margin(std::uint64_t size) {
  const std::uint64_t bytes = margin();
  if (bytes == 0) return true;
  // The program need not have asked for it.
  const auto get_info =
      reinterpret_cast<CUresult (*)(std::size_t*, std::size_t*)>(driver_symbol("cuMemGetInfo_v2"));
  if (Heap* heap = Runtime::get().heap(); heap != nullptr) heap->settle();
  std::size_t free = 0, total = 0;
  // Whoever has no device is told so by the allocation.
  if (get_info == nullptr || get_info(&free, &total) != CUDA_SUCCESS) return true;
  return size <= free && bytes <= free - size;
}

}  // namespace amem::shim
