// Copies and sets: what may be copied, how long it takes, and doing it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "tests/sim/memory/address_space.h"

namespace sim {

/// Rows of bytes from one place to another. A plain copy is one row.
struct Transfer {
  uintptr_t to = 0;
  uintptr_t from = 0;
  size_t width = 0;
  size_t rows = 1;
  size_t to_pitch = 0;
  size_t from_pitch = 0;

  size_t to_bytes() const { return rows == 0 ? 0 : (rows - 1) * to_pitch + width; }
  size_t from_bytes() const { return rows == 0 ? 0 : (rows - 1) * from_pitch + width; }
  bool empty() const { return width == 0 || rows == 0; }
};

/// The same byte pattern `count` times.
struct Fill {
  uintptr_t to = 0;
  uint32_t value = 0;
  unsigned width = 1;  // 1, 2 or 4
  size_t count = 0;
};

/// What a caller says about an end of a copy.
enum class Side {
  kAny,     // unified addressing: find out
  kHost,    // must not be device memory
  kDevice,  // must be memory known to the driver
};

/// A copy or set that is told by a struct. CUDA_ERROR_NOT_SUPPORTED: of arrays, or of several
/// layers; of several rows.
CUresult ReadCopy(const CUDA_MEMCPY3D& copy, Transfer* transfer, Side* to, Side* from);
CUresult ReadSet(const CUDA_MEMSET_NODE_PARAMS& set, Fill* fill);
/// The struct that tells it.
CUDA_MEMCPY3D Describe(const Transfer& transfer);
CUDA_MEMSET_NODE_PARAMS Describe(const Fill& fill);

/// Checks both ends for work on physical device `accessor`.
CUresult CheckTransfer(const Transfer& transfer, Side to, Side from, int accessor, Checked* to_is,
                       Checked* from_is);
CUresult CheckFill(const Fill& fill, int accessor);

/// On a stream's worker: checks again, for the mapping may be gone by now, then copies. Takes at
/// least the time that the link's bandwidth asks for. CUDA_ERROR_ILLEGAL_ADDRESS if the check
/// fails.
CUresult RunTransfer(const Transfer& transfer, int accessor);
CUresult RunFill(const Fill& fill, int accessor);
/// Takes the time that bytes need on the link between a device and the host, which a kernel moved.
void PassLink(int device, bool out, size_t bytes);

}  // namespace sim
