// Replay: repeats a recorded rank's memory calls against the driver.
//
// Numbers of the trace (virtual handles, addresses) are looked up in tables of what they are here.
// A create does not say which handle it made and an import does not say which it became; the next
// mapping of an unknown handle of that size does. Exports happen when a peer asks the proxy, as in
// NCCL. Sizes shrink by the scale, the distances inside large reservations stay.
//
// Belongs to one Rank, whose device must be current. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "tests/workload/base/pattern.h"
#include "tests/workload/nccl/nccl_calls.h"
#include "tests/workload/program/trace.h"

namespace amem::workload {

class Rank;

class Replay {
 public:
  Replay(Rank& rank, Trace trace, std::size_t scale);

  /// All up to the teardown run. Throws Failure, naming the line, when the driver answers
  /// differently than it did.
  void Run();
  void Teardown();

  std::size_t refused() const { return refused_; }

 private:
  struct Pending {  // has a handle, not yet mapped
    Handle handle = 0;
    std::uint64_t bytes = 0;  // as in the trace
    AllocationKey key;        // of an import
  };
  struct Known {
    AllocationKey key;
    std::vector<Handle> handles;  // references that this rank must release
  };

  void Repeat(const TraceCall& call);
  void Create(const TraceCall& call);
  void CreateOnHost(const TraceCall& call);
  void Import(const TraceCall& call);
  void Map(const TraceCall& call);
  void Access(const TraceCall& call);
  void Retain(const TraceCall& call);
  void Release(const TraceCall& call);
  void Unmap(const TraceCall& call);

  Known& Bind(const TraceCall& call);
  std::size_t Scaled(std::uint64_t bytes) const;
  CUdeviceptr Place(const TraceCall& call);
  CUdeviceptr Here(const TraceCall& call) const;
  /// This process's ordinal of a device that the trace knew by another; -1 when there is no such
  /// device here.
  int Device(int recorded) const;

  Rank& rank_;
  const Trace trace_;
  const std::size_t scale_;
  const std::size_t granularity_;
  const std::size_t small_granularity_;
  bool repeated_ = false;  // the next creation is the one that was refused just now
  std::deque<Pending> created_;
  std::deque<Pending> imported_;
  std::map<std::uint64_t, Known> known_;            // by the trace's handle
  std::map<std::uint64_t, CUdeviceptr> addresses_;  // trace's address -> ours, of live mappings
  std::vector<CUdeviceptr> shared_bases_;           // of trace_.shared_ranges; 0: not reserved yet
  std::size_t refused_ = 0;
};

}  // namespace amem::workload
