// Work for the device: launches and copies without end, streams, captures, and single calls that
// the driver refuses.
#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/sim/sim.h"
#include "tests/workload/base/driver.h"
#include "tests/workload/puppet/puppet.h"

extern "C" {
// cuda.h declares it only to those who want all default streams per thread.
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, CUstream, void**, void**);
}

namespace amem::workload {
namespace {

// ---- launches ----

// Adds what it is given, so that an argument that was lost on the way shows.
void CountingKernel(void** parameters) {
  auto* const count = *static_cast<std::atomic<std::uint64_t>**>(parameters[0]);
  count->fetch_add(*static_cast<std::uint64_t*>(parameters[1]));
}

using Launch = decltype(&cuLaunchKernel);

/// In one of the ways in which programs reach the call: linked, the variant for per-thread default
/// streams linked, or through cuGetProcAddress, itself linked.
Launch FindLaunch(const std::string& way) {
  if (way == "linked") return &cuLaunchKernel;
  if (way == "ptsz") return &cuLaunchKernel_ptsz;
  if (way != "looked-up") throw Failure("no such way to launch: " + way);
  return FindNewer<Launch>("cuLaunchKernel", 12000);
}

void StartLaunches(Puppet& puppet, Launch launch) {
  const std::size_t sizes[] = {sizeof(void*), sizeof(std::uint64_t)};
  if (puppet.kernel == nullptr)
    Check(amemSimFunctionCreate(&puppet.kernel, &CountingKernel, 2, sizes),
          "amemSimFunctionCreate");
  puppet.launches.Start([&puppet, launch] {
    Check(cuCtxSetCurrent(puppet.context), "cuCtxSetCurrent");
    std::atomic<std::uint64_t>* count = &puppet.launched;
    std::uint64_t one = 1;
    void* parameters[] = {static_cast<void*>(&count), &one};
    Check(launch(puppet.kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr), "launch");
    Check(cuCtxSynchronize(), "cuCtxSynchronize");
  });
}

void LoopLaunches(Puppet& puppet, const Words& words, Answer* answer) {
  const std::string& what = Word(words, 1);
  if (what == "off")
    puppet.launches.Stop();
  else if (what != "status")
    StartLaunches(puppet, FindLaunch(what));
  puppet.launches.Count();  // throws if it has ended
  answer->Number("launches", puppet.launched);
}

// ---- copies ----

void LoopCopies(Puppet& puppet, const Words& words, Answer* answer) {
  using Copy = CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t, CUstream);
  const std::string& way = Word(words, 1);
  if (way == "off") {
    puppet.copies.Stop();
  } else if (way != "status") {
    const Blocks::Block from = puppet.blocks.At(Number(words, 2));
    const Blocks::Block to = puppet.blocks.At(Number(words, 3));
    // As of cuTeleportAsync, which is made up.
    auto* copy = reinterpret_cast<Copy>(FindCall(Word(words, 4), way, 14000, answer));
    if (copy == nullptr)
      copy = [](CUdeviceptr there, CUdeviceptr here, std::size_t n, CUstream s) {
        return cuMemcpyDtoDAsync(there, here, n, s);
      };
    puppet.copies.Start([&puppet, copy, from, to] {
      Check(cuCtxSetCurrent(puppet.context), "cuCtxSetCurrent");
      Check(copy(to.address, from.address, from.bytes, nullptr), "copy");
      Check(cuCtxSynchronize(), "cuCtxSynchronize");
    });
  }
  answer->Number("copies", puppet.copies.Count());
}

/// By a call that is newer than CUDA 13.0.
void CopyNothing(Puppet&, const Words& words, Answer*) {
  const std::string& way = Word(words, 1);
  if (way == "attributes") {
    using Copy = CUresult (*)(CUdeviceptr, CUdeviceptr, std::size_t, CUmemcpyAttributes*, CUstream);
    const char* const name = "cuMemcpyWithAttributesAsync";
    Check(FindNewer<Copy>(name, 13020)(0, 0, 0, nullptr, nullptr), name);
  } else if (way == "fabric") {
    using Copy = CUresult (*)(std::size_t, void*, unsigned long long, CUstream);
    const char* const name = "cuFabricCpyBatchAsync";
    Check(FindNewer<Copy>(name, 13050)(0, nullptr, 0, nullptr), name);
  } else {
    throw Failure("no such way to copy: " + way);
  }
}

// ---- streams ----

CUstream Made(CUstream& stream) {
  if (stream == nullptr) Check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return stream;
}

void BeBusy(Puppet& puppet, const Words& words, Answer*) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the number is all that the function needs
  auto* const number = reinterpret_cast<void*>(static_cast<std::uintptr_t>(Number(words, 1)));
  const auto sleep = [](void* milliseconds) {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(reinterpret_cast<std::uintptr_t>(milliseconds)));
  };
  Check(cuLaunchHostFunc(Made(puppet.streams.busy), sleep, number), "cuLaunchHostFunc");
}

void BeginCapture(Puppet& puppet, const Words&, Answer*) {
  const auto begin = FindNewer<CUresult (*)(CUstream)>("cuStreamBeginCapture", 10000);
  Check(begin(Made(puppet.streams.captured)), "cuStreamBeginCapture");
}

void BeginRecapture(Puppet& puppet, const Words&, Answer*) {
  using Begin = CUresult (*)(CUstream, CUstreamCaptureMode, CUgraph, void*, void*);
  const auto begin = FindNewer<Begin>("cuStreamBeginRecaptureToGraph", 13030);
  CUgraph graph = nullptr;
  Check(cuGraphCreate(&graph, 0), "cuGraphCreate");
  Check(
      begin(Made(puppet.streams.captured), CU_STREAM_CAPTURE_MODE_RELAXED, graph, nullptr, nullptr),
      "cuStreamBeginRecaptureToGraph");
}

void EndCapture(Puppet& puppet, const Words&, Answer* answer) {
  CUgraph graph = nullptr;
  const CUresult result = cuStreamEndCapture(puppet.streams.captured, &graph);
  if (result == CUDA_SUCCESS) Check(cuGraphDestroy(graph), "cuGraphDestroy");
  answer->Number("result", static_cast<std::uint64_t>(result));
}

}  // namespace

const Commands<Puppet> kWorkCommands = {
    {"loop", LoopLaunches},
    {"copies", LoopCopies},
    {"newer-copy", CopyNothing},
    {"upload", [](Puppet&, const Words&,
                  Answer*) { Check(cuGraphUpload(nullptr, nullptr), "cuGraphUpload"); }},
    {"decompress",
     [](Puppet&, const Words&, Answer*) {
       Check(cuMemBatchDecompressAsync(nullptr, 0, 0, nullptr, nullptr),
             "cuMemBatchDecompressAsync");
     }},
    {"busy", BeBusy},
    {"capture begin", BeginCapture},
    {"capture again", BeginRecapture},
    {"capture end", EndCapture},
};

}  // namespace amem::workload
