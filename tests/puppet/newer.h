// Newer: driver calls that the puppet's headers do not have, found in each way in which programs
// find them.
//
// A copier copies in a loop, in a thread of its own: by a made-up call where that is found, else as
// on a driver without it. Start and Stop from one thread.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "tests/workload/base/answer.h"

namespace amem::puppet {

/// Says how a lookup of a driver call ended: "found", and what the way says besides. `way`:
/// "dlsym", "v1", "v2" (cuGetProcAddress, for this version of CUDA), "v2-by-dlsym" (as
/// cudaGetDriverEntryPoint of libcudart does it), or the path of a library that is loaded and
/// linked to it.
void* FindCall(const std::string& name, const std::string& way, int version,
               workload::Answer* answer);

/// Copies nothing by a call that is newer than CUDA 13.0, which the driver refuses: "attributes"
/// (cuMemcpyWithAttributesAsync) or "fabric" (cuFabricCpyBatchAsync).
void CopyNothing(const std::string& way);

class Copier {
 public:
  explicit Copier(CUcontext context) : context_(context) {}
  ~Copier() { Stop(); }

  /// `call`: as of cuTeleportAsync; nullptr: cuMemcpyDtoDAsync.
  void Start(void* call, CUdeviceptr to, CUdeviceptr from, std::size_t bytes);
  void Stop();
  /// Copies that ended. Throws workload::Failure when the loop did.
  std::uint64_t Count();

 private:
  using Copy = CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t, CUstream);
  void Run(Copy copy, CUdeviceptr to, CUdeviceptr from, std::size_t bytes);

  const CUcontext context_;
  std::atomic<std::uint64_t> count_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::mutex mutex_;  // guards error_
  std::string error_;
};

}  // namespace amem::puppet
