// Notices: what the log says, once in a process, about calls that go on to the driver. Any thread.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>

namespace amem::shim {

/// A kernel has touched memory that is mapped nowhere. If memory of this process is paused, logs
/// its tags: the driver gives no address. Not while a lock of the shim's is held.
void explain_fault(const char* call) noexcept;

/// The result of a call of the program's. Costs a comparison.
inline CUresult explained(const char* call, CUresult r) noexcept {
  if (r == CUDA_ERROR_ILLEGAL_ADDRESS) [[unlikely]]
    explain_fault(call);
  return r;
}

extern std::atomic<bool> stays_noted;
void note_stays(const char* call, std::size_t bytes);

/// The program has got device memory that only the driver can own. Where memory of cudaMalloc would
/// have been brokered, joins the group and says that this memory stays: else a pause would know
/// nothing of a process that has no other memory.
inline void stays(const char* call, std::size_t bytes) {
  if (!stays_noted.load(std::memory_order_relaxed)) [[unlikely]]
    note_stays(call, bytes);
}

}  // namespace amem::shim
