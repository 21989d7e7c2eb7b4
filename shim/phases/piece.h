// Piece: a range of an allocation that is copied to the pool or from there. Plain value.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "common/form.h"
#include "shim/blocks/gap.h"

namespace amem::shim {

struct Piece {
  std::uint64_t id = 0;
  std::uint64_t offset = 0;  // in the allocation
  std::uint64_t length = 0;  // bytes
  int device = -1;
  CUdeviceptr address = 0;
  CUdeviceptr pool = 0;        // where copies on the device find it, while the phase lasts
  CUdeviceptr in_segment = 0;  // where it lies
  std::uint64_t space = 0;     // of a save: bytes of the pool from there on; no more is written
  Form form = Form::kDense;    // as it lies in the pool, or as it is wished until that is decided
  std::uint64_t stored = 0;    // bytes of the copy
  std::uint64_t checksum = 0;  // of the piece's bytes; 0: none
  // Of the allocation: what is not zero, and counts as zero. Somebody else's; nullptr: nothing.
  const std::vector<Gap>* left_out = nullptr;
};

}  // namespace amem::shim
