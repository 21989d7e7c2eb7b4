#include "tests/workload/program/replay.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tests/workload/base/driver.h"
#include "tests/workload/base/failure.h"
#include "tests/workload/program/rank.h"

namespace amem::workload {
namespace {

[[noreturn]] void Unexpected(const std::string& what) { throw Failure("replay: " + what); }

}  // namespace

Replay::Replay(Rank& rank, Trace trace, std::size_t scale)
    : rank_(rank),
      trace_(std::move(trace)),
      scale_(scale),
      granularity_(rank.calls().Granularity(true)),
      small_granularity_(rank.calls().Granularity(false)),
      shared_bases_(trace_.shared_ranges.size()) {}

void Replay::Run() {
  for (std::size_t i = 0; i < trace_.teardown; ++i) Repeat(trace_.calls[i]);
}

void Replay::Teardown() {
  for (std::size_t i = trace_.teardown; i < trace_.calls.size(); ++i) Repeat(trace_.calls[i]);
}

void Replay::Repeat(const TraceCall& call) {
  try {
    switch (call.verb) {
      case TraceCall::Verb::kCreate:
        return Create(call);
      case TraceCall::Verb::kImport:
        return Import(call);
      case TraceCall::Verb::kMap:
        return Map(call);
      case TraceCall::Verb::kAccess:
        return Access(call);
      case TraceCall::Verb::kExport:
        return;  // the proxy does it when the peer asks
      case TraceCall::Verb::kRetain:
        return Retain(call);
      case TraceCall::Verb::kRelease:
        return Release(call);
      case TraceCall::Verb::kUnmap:
        return Unmap(call);
    }
  } catch (const Failure& failure) {
    throw Failure("trace line " + std::to_string(call.line) + ": " + failure.what());
  }
}

void Replay::Create(const TraceCall& call) {
  if (call.location != CU_MEM_LOCATION_TYPE_DEVICE) return CreateOnHost(call);
  CreateArguments arguments;
  arguments.location_id = Device(call.location_id);
  arguments.handle_types = call.handle_types;
  arguments.gpu_direct_rdma = call.rdma;
  Handle handle = 0;
  // What NCCL asked before, which a trace does not say. A refused creation is repeated at once.
  const bool symmetric = !call.rdma || (call.handle_types & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
  if (!std::exchange(repeated_, false)) rank_.calls().Granularity(symmetric);
  const CUresult result = NcclCalls::Create(Scaled(call.bytes), arguments, &handle);
  repeated_ = result != CUDA_SUCCESS;
  if (static_cast<int>(result) != call.result) {
    throw CudaFailure(
        "cuMemCreate: recorded " + std::to_string(call.result) + ", got " + ResultName(result),
        result);
  }
  if (result == CUDA_SUCCESS) {
    created_.push_back({handle, call.bytes, {}});
  } else {
    ++refused_;
  }
}

void Replay::CreateOnHost(const TraceCall& call) {
  // The trace has no more of these than their creation: they are not brokered. NCCL maps them for
  // itself and the device.
  CreateArguments arguments;
  arguments.location = static_cast<CUmemLocationType>(call.location);
  arguments.location_id = call.location_id;
  arguments.handle_types = call.handle_types;
  arguments.gpu_direct_rdma = call.rdma;
  const std::size_t bytes = Scaled(call.bytes);
  Handle handle = 0;
  Check(NcclCalls::Create(bytes, arguments, &handle), "cuMemCreate on the host");
  rank_.calls().Place(bytes, granularity_, handle);
}

void Replay::Import(const TraceCall& call) {
  const AllocationKey key{call.owner, call.id};
  const Proxy::Fetched got = rank_.proxy().Fetch(key);
  if (got.bytes != Scaled(call.bytes)) {
    Unexpected("rank " + std::to_string(call.owner) + " has " + std::to_string(got.bytes) +
               " bytes under this number");
  }
  imported_.push_back({got.handle, call.bytes, key});
}

Replay::Known& Replay::Bind(const TraceCall& call) {
  const auto known = known_.find(call.handle);
  if (known != known_.end()) return known->second;
  std::deque<Pending>& pending = call.imported ? imported_ : created_;
  const auto match = std::find_if(pending.begin(), pending.end(),
                                  [&](const Pending& each) { return each.bytes == call.bytes; });
  if (match == pending.end()) Unexpected("maps a handle that was neither created nor imported");
  const AllocationKey key = call.imported ? match->key : AllocationKey{rank_.number(), call.handle};
  Known& bound = known_.emplace(call.handle, Known{key, {match->handle}}).first->second;
  pending.erase(match);
  return bound;
}

void Replay::Map(const TraceCall& call) {
  Known& known = Bind(call);
  const std::size_t bytes = Scaled(call.bytes);
  if (known.handles.empty()) Unexpected("maps a handle that was released");
  const Handle handle = known.handles.back();
  // Other threads' calls may have come between in the recording; the order of each thread counts.
  NcclCalls::Properties(handle);
  const CUdeviceptr address = Place(call);
  NcclCalls::Map(address, bytes, call.offset / scale_, handle);
  addresses_[call.address] = address;
  rank_.ledger().AddMapping({address, bytes, known.key, call.imported});
}

void Replay::Access(const TraceCall& call) {
  const CUdeviceptr address = Here(call);
  CUmemLocation location = rank_.calls().here();
  location.id = Device(call.device);
  if (location.id < 0) return;
  NcclCalls::SetAccess(address, Scaled(call.bytes), location,
                       static_cast<CUmemAccess_flags>(call.access));
  if (location.id != rank_.ordinal()) return;
  for (const Mapping& mapping : rank_.ledger().Mappings()) {
    if (mapping.address == address && !mapping.imported &&
        !rank_.ledger().Published(mapping.key.id)) {
      rank_.FillAndPublish(mapping);
    }
  }
}

void Replay::Retain(const TraceCall& call) {
  const auto known = known_.find(call.handle);
  if (known == known_.end()) Unexpected("retains a handle that is not known");
  known->second.handles.push_back(NcclCalls::Retain(Here(call)));
}

void Replay::Release(const TraceCall& call) {
  const auto known = known_.find(call.handle);
  if (known == known_.end() || known->second.handles.empty()) {
    Unexpected("releases a handle that is not known");
  }
  std::vector<Handle>& handles = known->second.handles;
  NcclCalls::Release(handles.back());
  handles.pop_back();
  const AllocationKey key = known->second.key;
  if (handles.empty() && !rank_.ledger().Mapped(key)) {
    if (key.owner == rank_.number()) rank_.ledger().Withdraw(key.id);
    known_.erase(known);
  }
}

void Replay::Unmap(const TraceCall& call) {
  const CUdeviceptr address = Here(call);
  rank_.ledger().RemoveMapping(address);
  addresses_.erase(call.address);
  const std::size_t bytes = Scaled(call.bytes);
  NcclCalls::Unmap(address, bytes);
  const bool shared = std::any_of(trace_.shared_ranges.begin(), trace_.shared_ranges.end(),
                                  [&](const TraceRange& range) {
                                    return call.address >= range.begin && call.address < range.end;
                                  });
  if (!shared) NcclCalls::FreeAddress(address, bytes);
}

std::size_t Replay::Scaled(std::uint64_t bytes) const {
  const std::size_t shrunk = static_cast<std::size_t>(bytes) / scale_;
  // A size that is no multiple of the larger one was recorded where NCCL's buffers were packed.
  const std::size_t unit = bytes % granularity_ == 0 ? granularity_ : small_granularity_;
  return std::max<std::size_t>(1, (shrunk + unit - 1) / unit) * unit;
}

CUdeviceptr Replay::Place(const TraceCall& call) {
  for (std::size_t i = 0; i < shared_bases_.size(); ++i) {
    const TraceRange& range = trace_.shared_ranges[i];
    if (call.address < range.begin || call.address >= range.end) continue;
    if (shared_bases_[i] == 0) {
      shared_bases_[i] = NcclCalls::Reserve(range.end - range.begin, granularity_);
    }
    return shared_bases_[i] + (call.address - range.begin);
  }
  return NcclCalls::Reserve(Scaled(call.bytes), granularity_);
}

CUdeviceptr Replay::Here(const TraceCall& call) const {
  const auto found = addresses_.find(call.address);
  if (found == addresses_.end()) Unexpected("an address where nothing is mapped");
  return found->second;
}

int Replay::Device(int recorded) const {
  const int count = rank_.ordinals();
  if (recorded == trace_.device) return rank_.ordinal();
  if (count == 1) return -1;
  const int distance = recorded - trace_.device;
  return ((rank_.ordinal() + distance) % count + count) % count;
}

}  // namespace amem::workload
