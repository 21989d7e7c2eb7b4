// Communicator: launches collective rounds on a stream of its own, as NCCL launches its kernels.
//
// Part of libnccl_workload.so. The device's primary context must be current in every thread that
// calls it. Launch may block at the shim's gate.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "tests/workload/nccl/collective.h"
#include "tests/workload/nccl/export.h"

namespace amem::workload {

class WORKLOAD_EXPORT Communicator {
 public:
  /// Makes the stream. Throws Failure when the driver is not the simulated one: there are no other
  /// kernels here.
  Communicator();

  /// What rounds work on from now on. Call while none is under way.
  void SetPlan(CollectivePlan plan);

  /// One round; returns when it is queued. `loop` is the same number on all ranks, or 0.
  void Launch(std::uint64_t loop);
  /// Waits for everything that was launched.
  void Synchronize() const;

  CUstream stream() const { return stream_; }
  CollectiveReport& report() { return *report_; }

 private:
  CUstream stream_ = nullptr;
  CUfunction function_ = nullptr;
  bool extended_ = false;  // alternates between the two launch calls
  std::unique_ptr<CollectiveReport> report_;
  std::vector<std::unique_ptr<const CollectivePlan>> plans_;  // all there ever were
};

}  // namespace amem::workload
