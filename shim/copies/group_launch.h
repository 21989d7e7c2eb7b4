// How the kernels that serve groups of blocks are loaded, and launched (common/sparse.h: Launch)
// for a list of pieces, in as few launches as a kernel's parameters allow. Service thread only.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "common/driver.h"
#include "shim/copies/form_copier.h"

namespace amem::shim {

/// " on device 0", for messages.
inline std::string on_device(int ordinal) { return " on device " + std::to_string(ordinal); }

/// A piece, and where its groups' entries begin in the table of the launch.
struct Listed {
  Piece piece;
  std::uint32_t first_entry = 0;
};

struct GroupKernel {
  CUfunction function = nullptr;
  unsigned threads = 0;
  unsigned parts = 1;  // thread blocks for each group
};

/// A module of kernels in a device's context, and the stream on which they run.
struct LoadedKernels {
  CUmodule module = nullptr;
  CUstream stream = nullptr;
};
/// Loads PTX, and sets each function to the kernel of this name. After an error, unload_kernels().
/// REQUIRES: the device's context is current.
CUresult load_kernels(const Driver& driver, int device, const char* ptx,
                      std::span<const std::pair<CUfunction*, const char*>> functions,
                      LoadedKernels& kernels);
/// Also of what load_kernels() has made before an error. REQUIRES: as load_kernels(); all launches
/// have ended.
void unload_kernels(const Driver& driver, const LoadedKernels& kernels);

/// On which devices kernels were tried: on each once, and where there was no memory for them again
/// in the next phase.
class LoadAttempts {
 public:
  /// Whether to try now.
  bool begin(int device) { return tried_.insert(device).second; }
  /// The attempt ended with this error. True: the next phase tries again.
  bool failed(int device, CUresult error) {
    return error == CUDA_ERROR_OUT_OF_MEMORY && no_memory_.insert(device).second;
  }
  void end_phase() {
    for (const int device : std::exchange(no_memory_, {})) tried_.erase(device);
  }
  /// The program has reset the device.
  void forget(int device) {
    tried_.erase(device);
    no_memory_.erase(device);
  }

 private:
  std::set<int> tried_;
  std::set<int> no_memory_;  // of these, in this phase
};

/// The piece has so many groups.
std::uint32_t entries_of(const Piece& piece);

/// A piece's entries in a table of such.
template <class T>
std::span<T> part_of_table(void* table, std::uint32_t first, std::uint32_t count) {
  return {static_cast<T*>(table) + first, count};
}

/// Queues the kernel for all of them. `table`: pinned memory. REQUIRES: the device's context is
/// current.
CUresult launch_groups(const Driver& driver, const GroupKernel& kernel, CUstream stream,
                       void* table, std::span<const Listed> listed);

}  // namespace amem::shim
