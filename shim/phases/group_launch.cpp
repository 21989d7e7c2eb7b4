#include "shim/phases/group_launch.h"

#include <algorithm>

#include "common/sparse.h"

namespace amem::shim {

std::uint32_t entries_of(const Piece& piece) {
  return static_cast<std::uint32_t>(sparse::groups(piece.length));
}

CUresult launch_groups(const Driver& driver, const GroupKernel& kernel, CUstream stream,
                       void* table, std::span<const Listed> listed) {
  sparse::Launch launch;
  void* parameters[] = {&launch};
  CUresult r = CUDA_SUCCESS;
  while (r == CUDA_SUCCESS && !listed.empty()) {
    launch.entries = reinterpret_cast<std::uintptr_t>(table);
    launch.ranges = 0;
    launch.groups = 0;
    for (const Listed& one :
         listed.first(std::min<std::size_t>(listed.size(), sparse::kMaxRanges))) {
      launch.range[launch.ranges++] = {one.piece.address, one.piece.pool, one.piece.length,
                                       launch.groups, one.first_entry};
      launch.groups += entries_of(one.piece);
    }
    listed = listed.subspan(launch.ranges);
    r = driver.cuLaunchKernel_(kernel.function, launch.groups * kernel.parts, 1, 1, kernel.threads,
                               1, 1, 0, stream, parameters, nullptr);
  }
  return r;
}

}  // namespace amem::shim
