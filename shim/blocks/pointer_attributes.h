// What cuPointerGetAttribute says of a block of Heap: the same as the driver says of memory from
// cuMemAlloc. Ours is mapped memory: the driver says other things of it, and nothing while the
// group is paused. Pure functions.
#pragma once

#include <cuda.h>

#include <optional>

#include "shim/blocks/heap.h"

namespace amem::shim {

/// Nothing: no table knows it, ask the driver. So it is with P2P tokens, which stand for physical
/// addresses, and with attributes newer than this.
std::optional<CUresult> pointer_attribute(const Heap::Block& block, unsigned access_flags,
                                          CUdeviceptr address, CUpointer_attribute attribute,
                                          void* data);

/// The same of an address in mapped memory of the program's that is paused. Nothing: what is not
/// known, or differs with the reservation.
std::optional<CUresult> pointer_attribute(const Mappings::Absent& mapping, CUdeviceptr address,
                                          CUpointer_attribute attribute, void* data);

/// Writes what cuPointerGetAttributes writes where there is nothing to say. Returns false if there
/// is no such attribute.
bool no_pointer_attribute(CUpointer_attribute attribute, void* data);

}  // namespace amem::shim
