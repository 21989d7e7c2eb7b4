// HeapBlock: what cuMemAlloc has given out, or a pool. Plain value.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "shim/memory/allocation_table.h"

namespace amem::shim {

struct HeapBlock {
  Address address = 0;
  std::uint64_t size = 0;  // as asked for
  int device = 0;
  CUcontext context = nullptr;  // under which it was allocated
  std::uint64_t id = 0;         // never used twice in this process
  bool rdma = false;
  bool sync_memops = false;
  CUmemoryPool pool = nullptr;  // of cuMemAllocAsync
};

}  // namespace amem::shim
