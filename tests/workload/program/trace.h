// Trace: a rank's driver calls as recorded from NCCL, by the shim's AMEM_TRACE or by what made
// ../traces.
//
// Parsing and what can be told from the text alone; no driver. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace amem::workload {

struct TraceCall {
  enum class Verb { kCreate, kMap, kAccess, kExport, kImport, kRetain, kRelease, kUnmap };

  Verb verb = Verb::kCreate;
  std::size_t line = 0;       // in the file, from 1
  std::uint64_t bytes = 0;    // n=
  std::uint64_t address = 0;  // va=
  std::uint64_t offset = 0;   // off=
  std::uint64_t handle = 0;   // vh=: the rank's number for the allocation
  std::uint64_t id = 0;       // id=: the owner's number for it
  int owner = 0;              // owner=rankN
  int result = 0;             // rc=
  int location = 1;           // loc=TYPE:ID
  int location_id = 0;
  int device = 0;             // dev=
  unsigned handle_types = 1;  // hty=
  unsigned access = 3;        // fl=
  bool rdma = false;          // rdma=
  bool brokered = true;       // mine=
  bool imported = false;      // imported=
};

/// Addresses that were reserved in one piece.
struct TraceRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Trace {
  std::vector<TraceCall> calls;
  std::size_t teardown = 0;  // index of the first call of the run of releases and unmaps at the end
  std::size_t ignored = 0;   // lines that are no memory call of NCCL
  int device = 0;            // the rank's own, as it was numbered then
  /// Large reservations with several mappings in them: symmetric memory. Traces do not show
  /// reservations; they show in handles that are mapped a second time, into the neighbourhood of
  /// others.
  std::vector<TraceRange> shared_ranges;
};

/// Throws Failure, naming file and line, on what it cannot read.
Trace ReadTrace(const std::string& path);

}  // namespace amem::workload
