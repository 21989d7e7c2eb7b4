// What amem-heap asks of driver and shim besides memory of its own to use: pointers' attributes,
// captures, memory that is not brokered, the shim's calls, and what mistakes give. Each function is
// one command; throws Failure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/workload/base/answer.h"
#include "tests/workload/heap/heap_memory.h"

namespace amem::workload {

/// Pointer attributes of an address in this memory, one by one and all at once, which must agree.
void ReportAttributes(const HeapMemory& memory, std::uint64_t id, std::size_t offset,
                      Answer* answer);
/// What cuMemGetAccess says of every device.
void ReportAccess(const HeapMemory& memory, std::uint64_t id, Answer* answer);
void SetSyncMemops(const HeapMemory& memory, std::uint64_t id);

/// Driver results of calls that no program should make, by name.
void ReportMistakes(const HeapMemory& memory, Answer* answer);

/// A capture on a stream of the command's own, in the mode "global", "thread_local" or "relaxed".
/// `apart`: begun by a thread of its own, which ends; so only a relaxed one can end.
void BeginCapture(const HeapMemory& memory, const std::string& mode, bool apart);
/// A copy from this memory becomes part of the capture.
void CopyInCapture(const HeapMemory& memory, std::uint64_t id);
/// The result of cuStreamEndCapture.
void EndCapture(Answer* answer);
/// Results of cuMemAlloc and cuMemFree while the capture is open.
void DropCapture();
void AllocateInCapture(std::size_t bytes, Answer* answer);

/// A stream of device 0 that has nothing to do.
CUstream IdleStream(const HeapMemory& memory);
/// Gives it work that ends with ReleaseStream(), or after so many milliseconds.
void HoldStream(const HeapMemory& memory, std::uint64_t most);
void ReleaseStream();

/// Memory that no scope brokers: "pool", "own_pool", "managed", "array"; of the host "host",
/// "registered", "shared" (cuMemCreate), and "nccl_host", which NCCL's library allocates.
void AllocateUnbrokered(const std::string& kind, std::size_t bytes);
void FreeUnbrokered();

/// A context of its own with a block in it, destroyed again.
void UseContext(int device, std::size_t bytes, Answer* answer);

void BeginRegion(const std::string& tag, int policy);
void EndRegion();
void BeginUnbrokered();
void EndUnbrokered();
/// amem_shim_stats, as it came.
void ReportStats(Answer* answer);
void SetPolicy(const std::string& tag, int policy);
/// tms_pause or tms_resume; no tag: all that is torch_memory_saver's.
void CallSaver(const std::string& name, const std::string& tag);
void SetMemoryMargin(std::uint64_t bytes);
/// amem_shim_pause or amem_shim_resume. No tags: everything. "^tag" is excepted, "-tag" discarded;
/// "!" is no tag: a deep pause; nor is "+": `discard` by force.
void CallShim(const std::string& name, const std::vector<std::string>& tags);
/// NCCL's ncclCommWindowRegister, as a program that is linked to NCCL calls it, or as one that
/// looks it up in the library.
void RegisterWindow(int device, bool looked_up);

}  // namespace amem::workload
