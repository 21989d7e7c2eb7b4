// Stream-ordered memory: pools, streams, and work between the allocation and the free.
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "common/newer_cuda.h"
#include "tests/workload/base/bytes.h"
#include "tests/workload/base/driver.h"
#include "tests/workload/puppet/puppet.h"

extern "C" {
// cuda.h declares these only to those who want all default streams per thread.
CUresult cuMemAllocAsync_ptsz(CUdeviceptr*, std::size_t, CUstream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);
}

namespace amem::workload {
namespace {

/// "0" is the legacy default stream, "t" the thread's own.
bool OfThread(const Words& words, std::size_t index) { return Word(words, index) == "t"; }

CUstream StreamAt(Puppet& puppet, const Words& words, std::size_t index) {
  if (OfThread(words, index)) return CU_STREAM_PER_THREAD;
  const std::uint64_t number = Number(words, index);
  if (number == 0) return nullptr;
  const auto found = puppet.pools.streams.find(number);
  if (found == puppet.pools.streams.end()) throw Failure("no stream " + words[index]);
  return found->second;
}

/// 0 is the current one of the device.
CUmemoryPool PoolAt(Puppet& puppet, const Words& words, std::size_t index) {
  const std::uint64_t number = Number(words, index);
  CUmemoryPool pool = nullptr;
  if (number == 0)
    Check(cuDeviceGetMemPool(&pool, puppet.device), "cuDeviceGetMemPool");
  else if (puppet.pools.pools.contains(number))
    pool = puppet.pools.pools.at(number);
  else
    throw Failure("no pool " + words[index]);
  return pool;
}

template <class Things>
std::uint64_t NextNumber(const Things& things) {
  return things.empty() ? 1 : things.rbegin()->first + 1;
}

// ---- streams ----

/// On the puppet's device, or another one, which is not the current one then.
void NewStream(Puppet& puppet, const Words& words, Answer* answer) {
  const std::uint64_t number = NextNumber(puppet.pools.streams);
  CUcontext context = puppet.context;
  if (words.size() > 2)
    Check(cuDevicePrimaryCtxRetain(&context, static_cast<CUdevice>(Number(words, 2))),
          "cuDevicePrimaryCtxRetain");
  Check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  const unsigned flags =
      WordAt(words, 1) == "blocking" ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  Check(cuStreamCreate(&puppet.pools.streams[number], flags), "cuStreamCreate");
  Check(cuCtxSetCurrent(puppet.context), "cuCtxSetCurrent");
  answer->Number("stream", number);
}

void DestroyStream(Puppet& puppet, const Words& words, Answer*) {
  Check(cuStreamDestroy(StreamAt(puppet, words, 2)), "cuStreamDestroy");
  puppet.pools.streams.erase(Number(words, 2));
}

void HoldStream(Puppet& puppet, const Words& words, Answer*) {
  std::atomic<std::uint64_t>& held = puppet.pools.held[Number(words, 2)];
  held = NumberAt(words, 3, 60'000);
  const auto wait = [](void* its) {
    const auto& most = *static_cast<std::atomic<std::uint64_t>*>(its);
    for (std::uint64_t i = 0; i < most; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  Check(cuLaunchHostFunc(StreamAt(puppet, words, 2), wait, &held), "cuLaunchHostFunc");
}

void WaitForStream(Puppet& puppet, const Words& words, Answer*) {
  CUevent& event = puppet.pools.event;
  if (event == nullptr) Check(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  Check(cuEventRecord(event, StreamAt(puppet, words, 3)), "cuEventRecord");
  Check(cuStreamWaitEvent(StreamAt(puppet, words, 2), event, 0), "cuStreamWaitEvent");
}

void CaptureStream(Puppet& puppet, const Words& words, Answer*) {
  Check(cuStreamBeginCapture(StreamAt(puppet, words, 2), CU_STREAM_CAPTURE_MODE_RELAXED),
        "cuStreamBeginCapture");
}

void EndCapture(Puppet& puppet, const Words& words, Answer* answer) {
  CUgraph graph = nullptr;
  const CUresult result = cuStreamEndCapture(StreamAt(puppet, words, 2), &graph);
  if (result == CUDA_SUCCESS) Check(cuGraphDestroy(graph), "cuGraphDestroy");
  answer->Number("result", static_cast<std::uint64_t>(result));
}

// ---- pools ----

void NewPool(Puppet& puppet, const Words& words, Answer* answer) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {puppet.device}};
  properties.maxSize = NumberAt(words, 2, 0);
  if (WordAt(words, 3) == "exportable")
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (WordAt(words, 3) == "decompression")
    std::memcpy(reinterpret_cast<char*>(&properties.maxSize) + sizeof properties.maxSize,
                &amem::cuda::kPoolForDecompression, sizeof amem::cuda::kPoolForDecompression);
  const std::uint64_t number = NextNumber(puppet.pools.pools);
  Check(cuMemPoolCreate(&puppet.pools.pools[number], &properties), "cuMemPoolCreate");
  answer->Number("pool", number);
}

void DestroyPool(Puppet& puppet, const Words& words, Answer*) {
  Check(cuMemPoolDestroy(PoolAt(puppet, words, 2)), "cuMemPoolDestroy");
  puppet.pools.pools.erase(Number(words, 2));
}

void SetAttribute(Puppet& puppet, const Words& words, Answer*) {
  cuuint64_t value = Number(words, 4);  // whose first bytes are an int of that value
  Check(cuMemPoolSetAttribute(PoolAt(puppet, words, 2),
                              static_cast<CUmemPool_attribute>(Number(words, 3)), &value),
        "cuMemPoolSetAttribute");
}

void GetAttribute(Puppet& puppet, const Words& words, Answer* answer) {
  cuuint64_t value = 0;
  Check(cuMemPoolGetAttribute(PoolAt(puppet, words, 2),
                              static_cast<CUmemPool_attribute>(Number(words, 3)), &value),
        "cuMemPoolGetAttribute");
  answer->Number("value", value);
}

void SetAccess(Puppet& puppet, const Words& words, Answer*) {
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {static_cast<int>(Number(words, 3))}},
                               static_cast<CUmemAccess_flags>(Number(words, 4))};
  Check(cuMemPoolSetAccess(PoolAt(puppet, words, 2), &access, 1), "cuMemPoolSetAccess");
}

// ---- blocks ----

void Allocate(Puppet& puppet, const Words& words, Answer* answer) {
  const std::size_t bytes = Number(words, 1);
  const CUstream stream = StreamAt(puppet, words, 2);
  CUdeviceptr address = 0;
  if (words.size() > 3)
    Check(cuMemAllocFromPoolAsync(&address, bytes, PoolAt(puppet, words, 3), stream),
          "cuMemAllocFromPoolAsync");
  else if (OfThread(words, 2))
    Check(cuMemAllocAsync_ptsz(&address, bytes, nullptr), "cuMemAllocAsync");
  else
    Check(cuMemAllocAsync(&address, bytes, stream), "cuMemAllocAsync");
  answer->Number("id", puppet.blocks.AddPooled(address, bytes));
}

/// The block is the program's still if that fails.
void FreeAsync(Puppet& puppet, const Words& words, Answer* answer) {
  const CUdeviceptr address = puppet.blocks.At(Number(words, 1)).address;
  const CUresult result = OfThread(words, 2) ? cuMemFreeAsync_ptsz(address, nullptr)
                                             : cuMemFreeAsync(address, StreamAt(puppet, words, 2));
  if (result == CUDA_SUCCESS) puppet.blocks.Forget(Number(words, 1));
  answer->Number("result", static_cast<std::uint64_t>(result));
}

/// By its address, as who has freed it already.
void FreeAddress(Puppet& puppet, const Words& words, Answer* answer) {
  answer->Number("result", static_cast<std::uint64_t>(
                               cuMemFreeAsync(Number(words, 1), StreamAt(puppet, words, 2))));
}

void Set(Puppet& puppet, const Words& words, Answer*) {
  const Blocks::Block& block = puppet.blocks.At(Number(words, 1));
  Check(cuMemsetD8Async(block.address, static_cast<unsigned char>(Number(words, 2)), block.bytes,
                        StreamAt(puppet, words, 3)),
        "cuMemsetD8Async");
}

void Copy(Puppet& puppet, const Words& words, Answer*) {
  const Blocks::Block& to = puppet.blocks.At(Number(words, 1));
  const Blocks::Block& from = puppet.blocks.At(Number(words, 2));
  Check(cuMemcpyDtoDAsync(to.address, from.address, std::min(to.bytes, from.bytes),
                          StreamAt(puppet, words, 3)),
        "cuMemcpyDtoDAsync");
}

void ExpectByte(Puppet& puppet, const Words& words, Answer*) {
  const Blocks::Block& block = puppet.blocks.At(Number(words, 1));
  const std::uint64_t word = Number(words, 2) * 0x0101010101010101ULL;
  if (const auto wrong =
          FirstWrongByte(block.address, block.bytes, [word](std::size_t) { return word; }))
    throw Failure("block " + words[1] + " is wrong from byte " + std::to_string(*wrong));
}

/// Blocks that come, are written, copied on, checked and freed in turn: N of them, on the streams
/// that there are, with an event between each two.
void Churn(Puppet& puppet, const Words& words, Answer* answer) {
  const std::uint64_t count = Number(words, 2);
  const std::size_t bytes = Number(words, 3);
  std::vector<CUstream> streams;
  for (const auto& [number, stream] : puppet.pools.streams) streams.push_back(stream);
  if (streams.empty()) throw Failure("no streams");
  CUevent event = nullptr;
  Check(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  CUdeviceptr sums = 0;
  Check(cuMemAlloc(&sums, count), "cuMemAlloc");
  for (std::uint64_t i = 0; i < count; ++i) {
    const CUstream here = streams[i % streams.size()];
    const CUstream there = streams[(i + 1) % streams.size()];
    CUdeviceptr block = 0;
    Check(cuMemAllocAsync(&block, bytes, here), "cuMemAllocAsync");
    Check(cuMemsetD8Async(block, static_cast<unsigned char>(i), bytes, here), "cuMemsetD8Async");
    Check(cuEventRecord(event, here), "cuEventRecord");
    Check(cuStreamWaitEvent(there, event, 0), "cuStreamWaitEvent");
    // The last byte, which nobody else must have written.
    Check(cuMemcpyDtoDAsync(sums + i, block + bytes - 1, 1, there), "cuMemcpyDtoDAsync");
    Check(cuMemFreeAsync(block, there), "cuMemFreeAsync");
  }
  for (const CUstream stream : streams) Check(cuStreamSynchronize(stream), "cuStreamSynchronize");
  std::vector<unsigned char> seen(count);
  Check(cuMemcpyDtoH(seen.data(), sums, count), "cuMemcpyDtoH");
  Check(cuMemFree(sums), "cuMemFree");
  Check(cuEventDestroy(event), "cuEventDestroy");
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < count; ++i) wrong += seen[i] != static_cast<unsigned char>(i);
  answer->Number("wrong", wrong);
}

}  // namespace

const Commands<Puppet> kPoolCommands = {
    {"stream new", NewStream},
    {"stream blocking", NewStream},
    {"stream destroy", DestroyStream},
    {"stream hold", HoldStream},
    {"stream go", [](Puppet& p, const Words& w, Answer*) { p.pools.held.at(Number(w, 2)) = 0; }},
    {"stream sync",
     [](Puppet& p, const Words& w, Answer*) {
       Check(cuStreamSynchronize(StreamAt(p, w, 2)), "cuStreamSynchronize");
     }},
    {"stream wait", WaitForStream},
    {"stream capture", CaptureStream},
    {"stream end", EndCapture},
    {"pool new", NewPool},
    {"pool destroy", DestroyPool},
    {"pool use",
     [](Puppet& p, const Words& w, Answer*) {
       Check(cuDeviceSetMemPool(p.device, PoolAt(p, w, 2)), "cuDeviceSetMemPool");
     }},
    {"pool set", SetAttribute},
    {"pool get", GetAttribute},
    {"pool access", SetAccess},
    {"pool trim",
     [](Puppet& p, const Words& w, Answer*) {
       Check(cuMemPoolTrimTo(PoolAt(p, w, 2), Number(w, 3)), "cuMemPoolTrimTo");
     }},
    {"pool churn", Churn},
    {"async", Allocate},
    {"free-async", FreeAsync},
    {"free-async-address", FreeAddress},
    {"set", Set},
    {"copy", Copy},
    {"byte", ExpectByte},
};

}  // namespace amem::workload
