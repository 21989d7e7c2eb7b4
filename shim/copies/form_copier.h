// FormCopier: how pieces are written to the pool in one form, and read back. There is one for each
// form of common/form.h that bytes can lie in; Mover gives each piece to the one of its form.
//
// A save: offer() each piece, start() after each packet, store() once. A load: load(). Both:
// finish(). Service thread only.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/driver.h"
#include "common/form.h"
#include "common/status.h"
#include "shim/blocks/small_blocks.h"
#include "shim/copies/block_hashes.h"
#include "shim/driver/local_devices.h"

namespace amem::shim {

/// A range of an allocation that is copied to the pool or from there. Plain value.
struct Piece {
  std::uint64_t id = 0;
  std::uint64_t offset = 0;  // in the allocation
  std::uint64_t length = 0;  // bytes
  int device = -1;
  CUdeviceptr address = 0;
  CUdeviceptr pool = 0;         // where copies on the device find it, while the phase lasts
  CUdeviceptr in_segment = 0;   // where it lies
  std::uint64_t space = 0;      // of a save: bytes of the pool from there on; no more is written
  Form form = Form::kDense;     // as it lies in the pool, or as it is wished until that is decided
  std::uint64_t stored = 0;     // bytes of the copy
  std::uint64_t checksum = 0;   // of the piece's bytes; 0: none
  SavedPlace place;             // of a save: what its hashes are kept by
  bool hash = false;            // of a save: take hashes; afterwards: they were taken
  std::uint64_t unchanged = 0;  // of a save: bytes that lay there already
  // The parts of the allocation that are not zero, and count as zero. Somebody else's; nullptr:
  // none.
  const std::vector<Gap>* left_out = nullptr;
};

class FormCopier {
 public:
  virtual ~FormCopier() = default;

  /// Makes what copies of this device need. REQUIRES: the device is in use.
  virtual void prepare(int device) = 0;
  /// The program has reset this device: what was made there has gone.
  virtual void forget(int device) = 0;

  /// Takes a piece to save. Returns false if it cannot be saved in this form.
  virtual bool offer(const Piece& piece) = 0;
  /// Queues what can be done to what was offered since the last call.
  virtual Status start() = 0;
  /// Queues the rest. Gives back what was offered, `form` and `stored` set. A piece that has
  /// another form now is left to that one, whose copier comes later in Copiers::all().
  virtual Status store(std::vector<Piece>& saved) = 0;

  /// Queues the loading of pieces that lie in this form.
  virtual Status load(std::span<const Piece> pieces) = 0;

  /// The phase ends: waits for all that was queued. What was offered and not stored is forgotten.
  virtual Status finish() = 0;

  /// By the CPU: bytes of a piece from `offset` of the piece on, from its copy at `pool`.
  virtual void read(const Piece& piece, const std::byte* pool, std::uint64_t offset,
                    std::uint64_t length, std::byte* out) const = 0;
};

#ifdef AMEM_TEST_SEAMS
std::unique_ptr<FormCopier> make_test_copier(const Driver& driver, LocalDevices& devices);
#endif

}  // namespace amem::shim
